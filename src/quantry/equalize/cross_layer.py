"""Cross-layer equalization of a graph: find chains, balance them, write the weights."""

import numpy as np
import onnx_ir as ir

from quantry.equalize.balance import Factors, Magnitudes, balance, counted_bias, magnitudes
from quantry.equalize.chains import find_chains
from quantry.equalize.channel_layout import bias_magnitude, scaled_bias
from quantry.equalize.linear_layer import LinearLayer, array_of
from quantry.graph.passes.clip6_to_relu import clip6_to_relu
from quantry.graph.weights import release, tensor_from_array
from quantry.recipe import CrossLayer


def equalize_layers(model: ir.Model, options: CrossLayer) -> tuple[str, ...]:
    """Equalize the ranges of channels between consecutive layers; edits the model and keeps its outputs.

    Args:
        model: The graph to edit.
        options: Sweeps and thresholds.

    Returns:
        Notes: how much was equalized, and how many layers could not be joined to the next, by reason.
    """
    notes = list(clip6_to_relu(model)) if options.clip6_to_relu else []
    found = find_chains(model)
    known = [_magnitudes(layer, include_bias=options.include_bias) for layer in found.layers]
    factors, sweeps = balance(known, found.chains, options)
    changed = [layer for layer, factor in zip(found.layers, factors, strict=True) if _apply(layer, factor)]
    if found.chains:
        notes.append(
            f"cross-layer equalization changed {len(changed)} of the {len(found.layers)} layers in {len(found.chains)} "
            f"chains; sweeps: {sweeps}"
        )
    notes += [f"no cross-layer equalization behind {count} layers: {reason}" for reason, count in found.reasons]
    return tuple(notes)


def _magnitudes(layer: LinearLayer, *, include_bias: bool) -> Magnitudes:
    weight = np.ascontiguousarray(array_of(layer.weight))
    outputs = layer.layout.outputs
    plain = magnitudes(layer.layout.view(weight), np.zeros(outputs))
    if layer.weight.const_value is not None:
        release(layer.weight.const_value)
    if layer.bias is None or not include_bias:
        return plain
    bias = bias_magnitude(array_of(layer.bias), outputs)
    peak = plain.peak.max(axis=2).reshape(-1)
    return Magnitudes(plain.peak, plain.total, counted_bias(bias, peak), plain.size)


def _apply(layer: LinearLayer, factors: Factors) -> bool:
    """Multiply the weights of a layer; return whether there was anything to multiply."""
    if np.all(factors.outputs == 1) and np.all(factors.inputs == 1):
        return False
    _store(layer.weight, layer.layout.scaled(array_of(layer.weight), factors.outputs, factors.inputs))
    if layer.bias is not None:
        _store(layer.bias, scaled_bias(array_of(layer.bias), factors.outputs))
    return True


def _store(value: ir.Value, array: np.ndarray) -> None:
    value.const_value = tensor_from_array(array, value.name or "")
    value.shape = ir.Shape(array.shape)
