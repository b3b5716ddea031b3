"""Turns a trained module into its final form: the values that are exported."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from quantry.errors import known_keywords
from quantry.execute.batch_norm_layer import BatchNormLayer, fold
from quantry.execute.quantized_view import QuantizedView
from quantry.numerics.tensor_params import QuantParams
from quantry.scale.npu import refine_for_npu
from quantry.torchfront.module_definition import ModuleDefinition
from quantry.torchfront.quantized_module import QuantizedModule, build, fake_quantizers, require_quantized
from quantry.torchfront.switches import require_enabled
from quantry.tune import Tuned, tuned_model


@known_keywords("freeze")
def freeze(module: QuantizedModule) -> QuantizedModule:
    """Return the final module: batch normalizations folded exactly as trained, scales fixed and within NPU limits.

    Unless an NPU limit changes a scale, it computes what the trained module computes in evaluation mode. Functions
    such as Sigmoid of 8-bit tensors use lookup tables computed by onnxruntime, so that the exported model agrees bit
    for bit.

    Args:
        module: The trained or calibrated module; it is not changed.

    Raises:
        ModelError: The module is not quantized, or its quantizers are disabled, as in a `float_copy`.
    """
    require_quantized(module, "freeze")
    require_enabled(module, "freeze")
    definition = frozen_definition(module)
    final = build(definition)
    final.eval()
    final.requires_grad_(requires_grad=False)
    final.to(next((tensor.device for tensor in module.state_dict().values() if torch.is_tensor(tensor)), "cpu"))
    final.is_frozen = True
    return final


def frozen_definition(module: QuantizedModule) -> ModuleDefinition:
    """Return model, plan and parameters as they are after training, with all batch normalizations folded."""
    start = module.definition
    params = current_params(module)
    model = tuned_model(start.model, Tuned(_weights(module), params))
    if start.recipe.scale.npu is not None:
        params = refine_for_npu(model.model, start.plan, params, start.recipe.scale.npu)
    return replace(start, model=model, params=params, batch_norms={}, arrays={}, final=True)


def _weights(module: QuantizedModule) -> dict[str, npt.NDArray[np.float32]]:
    definition, layout = module.definition, module.layout
    initializers = definition.model.model.graph.initializers
    weights = {
        name: _array(_at(module, path))
        for name, path in layout.tensors.items()
        if name in initializers and name not in definition.batch_norms and _at(module, path).is_floating_point()
    }
    for node in definition.model.model.graph:
        name = "" if len(node.inputs) < 2 or node.inputs[1] is None else node.inputs[1].name or ""
        if name not in layout.layers:
            continue
        assert node.inputs[2] is not None
        weights[name], weights[node.inputs[2].name or ""] = _folded(module, name)
    return weights


def _folded(module: QuantizedModule, weight: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    norm = module.definition.batch_norms[weight]
    layer = module.get_submodule(module.layout.layers[weight])
    assert isinstance(layer, BatchNormLayer)
    bias = None if norm.layer_bias is None else _at(module, module.layout.tensors[norm.layer_bias])
    norm_tensors = [_at(module, module.layout.tensors[name]) for name in norm.norm]
    with torch.no_grad():
        folded = fold(_at(module, module.layout.tensors[weight]), bias, norm_tensors, layer.epsilon)
    return _array(folded[0]), _array(folded[1])


def current_params(module: QuantizedModule) -> QuantParams:
    """Return the current parameters of every quantized tensor of a module."""
    current = {name: quantizer.params() for name, quantizer in fake_quantizers(module).items()}
    return QuantizedView(module.definition.plan, module.definition.params).with_scales(current).params


def _at(module: torch.nn.Module, path: str) -> torch.Tensor:
    holder, _, leaf = path.rpartition(".")
    tensor: torch.Tensor = getattr(module.get_submodule(holder), leaf)
    return tensor


def _array(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(tensor.detach().cpu().numpy(), np.float32)
