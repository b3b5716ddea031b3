"""From a captured graph, or an ONNX model, to a quantized torch module."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import fx

from quantry.errors import ModelError, RecipeError
from quantry.memo import Handle, Memo, Store, Trace
from quantry.observe import calibration_data
from quantry.pipeline import Stages, run_prepare, run_quantize
from quantry.prepare import FloatModel, model_source, read_model
from quantry.recipe import Dynamic, Recipe, resolve_recipe
from quantry.torchfront.blueprint import Blueprint, find_batch_norms
from quantry.torchfront.conversions import converted_constants, converted_nodes
from quantry.torchfront.lowering import Lowered, lower
from quantry.torchfront.quantized_module import QuantizedModule, build, refuse_quantized
from quantry.torchfront.scopes import FloatScopes, nodes_in
from quantry.tune import Tuned, retouch

GraphLike: TypeAlias = "fx.GraphModule | ir.Model | str | os.PathLike[str] | bytes"
"""A captured graph, or a float ONNX model."""


def quantize_graph(
    model: GraphLike,
    data: Any,
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    float_scopes: FloatScopes | None = None,
    store: Store | None = None,
) -> QuantizedModule:
    """Quantize after training: calibrate on data and return a module that computes what will be exported.

    The plan, the statistics and the scales are those of ``quantry.quantize`` on the same model, stage by stage; tuning
    steps of the recipe run too. Training can go on from there.

    Args:
        model: What `capture` returned, or a float ONNX model: its graph, bytes or path.
        data: Calibration data: a list of tensors, dicts or tuples, a DataLoader, or anything that ``quantry.quantize``
            takes. Of a tuple only as many items are used as the model has inputs.
        recipe: Options of every stage: a `Recipe`, the name of a preset such as ``"XINT8"``, the path of a recipe file,
            or plain data.
        float_scopes: Parts that stay float.
        store: Keeps results of stages between calls; None keeps none.

    Returns:
        The module in evaluation mode, on the device of the captured one.

    Raises:
        ModelError: An operator cannot be written as ONNX or trained in torch.
        DataError: The data do not fit the model.
        RecipeError: There is no such preset or file, it is no recipe, or torch cannot compute what it asks for.
    """
    recipe, pending = resolve_recipe(recipe)
    if isinstance(recipe.emit.format, Dynamic):
        raise RecipeError(
            "the torch path needs scales that are known before the model runs, got the format Dynamic in recipe "
            f"{recipe.name!r}; use quantry.quantize on a float ONNX model"
        )
    lowered = _lowered(model)
    memo = Memo(store, Trace())
    prepared = run_prepare(model_source(lowered.model), recipe, memo)
    if float_scopes is not None:
        recipe = _with_exclusions(recipe, nodes_in(float_scopes, lowered.scopes, prepared.value.model))
    data = calibration_data(_on_cpu(data), prepared.value.inputs)
    stages = run_quantize(prepared, data, recipe, memo)
    module = build(_blueprint(lowered, stages, recipe, pending))
    if isinstance(model, fx.GraphModule):
        module.to(next((tensor.device for tensor in model.parameters()), torch.device("cpu")))
    module.eval()
    return module


def _blueprint(lowered: Lowered, stages: Stages, recipe: Recipe, pending: tuple[str, ...]) -> Blueprint:
    final: FloatModel = stages.equalized.value
    for step in stages.tuned:
        final = retouch(final, step.value)
    norms, arrays = find_batch_norms(lowered.model, stages.prepared.value, final)
    folded = sum(node.op_type == "BatchNormalization" for node in lowered.model.graph) - len(norms)
    notes = [*pending, *final.notes, *stages.params.value.notes, *stages.quantized.value.notes]
    if folded:
        notes.append(f"{folded} batch normalizations are folded and no longer trained apart")
    originals, constants = {}, {}
    if recipe.prepare.npu is not None:
        models = stages.prepared.value.model, stages.equalized.value.model
        originals, constants = converted_nodes(*models), converted_constants(*models)
    return Blueprint(
        model=final,
        plan=stages.plan.value,
        params=stages.params.value,
        recipe=recipe,
        batch_norms=norms,
        arrays=arrays,
        untuned=_untuned(stages.equalized.value, stages.tuned) | constants,
        originals=originals,
        frozen=lowered.buffers - {name for norm in norms.values() for name in norm.norm[:2]},
        signature=lowered.signature,
        constants=lowered.constants,
        notes=tuple(notes),
    )


def _untuned(model: FloatModel, steps: tuple[Handle[Tuned], ...]) -> dict[str, npt.NDArray[np.float32]]:
    initializers = model.model.graph.initializers
    values = {name: initializers[name].const_value for step in steps for name in step.value.weights}
    return {name: np.asarray(value.numpy(), np.float32) for name, value in values.items() if value is not None}


def _lowered(model: GraphLike) -> Lowered:
    if isinstance(model, fx.GraphModule):
        refuse_quantized(model, "quantize_graph")
        return lower(model)
    if isinstance(model, torch.nn.Module):
        raise ModelError(
            f"a model must be captured before it is quantized, got a plain {type(model).__name__}; call "
            "quantry.torch.capture(model, example) first"
        )
    graph = model if isinstance(model, ir.Model) else read_model(model)
    return Lowered(graph, {}, None, {})


def _with_exclusions(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, *names))
    return replace(recipe, plan=replace(recipe.plan, selection=selection))


def _on_cpu(data: Any) -> Any:
    """Return data whose tensors are arrays; what is not made of tensors is left as it is."""
    if isinstance(data, torch.Tensor):
        return data.detach().cpu().numpy()
    if isinstance(data, list | tuple):
        return [_sample(sample) for sample in data]
    if isinstance(data, torch.utils.data.DataLoader):
        return _converted(data)
    return data


def _converted(loader: Any) -> Iterator[Any]:
    return (_sample(sample) for sample in loader)


def _sample(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        return np.asarray(sample.detach().cpu().float() if sample.dtype == torch.bfloat16 else sample.detach().cpu())
    if isinstance(sample, dict):
        return {name: _sample(value) for name, value in sample.items()}
    if isinstance(sample, list | tuple):
        return tuple(_sample(value) for value in sample)
    return sample
