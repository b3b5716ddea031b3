"""From a captured graph, or an ONNX model, to a quantized torch module."""

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import fx

from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.errors import ModelError, RecipeError, known_keywords
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source, read_model
from quantry.memo import Handle, Memo, Store, Trace
from quantry.pipeline import Stages, calibration_samples, run_prepare, run_quantize
from quantry.recipe import Dynamic, Recipe, resolve_recipe
from quantry.torchfront.blueprint import Blueprint, find_batch_norms
from quantry.torchfront.calibration_samples import on_cpu
from quantry.torchfront.conversions import converted_constants, converted_nodes
from quantry.torchfront.cut_off import cut_off_nodes
from quantry.torchfront.lowering import Lowered, lower
from quantry.torchfront.quantized_module import QuantizedModule, build, refuse_quantized
from quantry.torchfront.scopes import FloatScopes, nodes_in
from quantry.tune import Tuned, tuned_model

GraphLike: TypeAlias = "fx.GraphModule | ir.Model | str | os.PathLike[str] | bytes"
"""A captured graph, or a float ONNX model."""


_NO_DATA = (
    "no calibration data were given: ranges come from one random sample, uniform in [0, 1), so the module is of no use "
    "before it is trained with scales that follow the data"
)
_OTHER_NAMES = {"dataloader": "data", "calibration_data": "data", "config": "recipe", "quant_config": "recipe"}


@known_keywords("quantize_graph", _OTHER_NAMES)
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
            takes. Of a tuple only as many items are used as the model has inputs. None means random data, with a
            warning and a note, where the recipe needs any.
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
    # Opened once: the data may be an iterator, and opening it spools or hashes every sample.
    calibration = functools.cache(lambda: _calibration(data, prepared.value, recipe))
    if data is not None:
        calibration()  # data that do not fit are told now, needed or not
    stages = run_quantize(prepared, calibration, recipe, memo)
    if data is None and calibration.cache_info().currsize:
        pending = (_NO_DATA, *pending)
    cut_off, notes = cut_off_nodes(lowered.model, stages.equalized.value, recipe, memo, calibration)
    blueprint = _blueprint(lowered, stages, recipe, (*pending, *notes))
    module = build(replace(blueprint, originals={**blueprint.originals, **cut_off}))
    if isinstance(model, fx.GraphModule):
        module.to(next((tensor.device for tensor in model.parameters()), torch.device("cpu")))
        _keep_frozen(module, model)
    module.eval()
    return module


def _keep_frozen(module: QuantizedModule, model: fx.GraphModule) -> None:
    """Let weights rest that the user's model does not train; a model in which all rest was made ready for inference."""
    resting = {name for name, part in model.named_parameters() if not part.requires_grad}
    if len(resting) < len(dict(model.named_parameters())):
        paths = {module.layout.tensors[name] for name in resting & set(module.layout.tensors)}
        for path, part in module.named_parameters():
            part.requires_grad_(part.requires_grad and path not in paths)


def _calibration(data: Any, model: FloatModel, recipe: Recipe) -> CalibrationData:
    return calibration_samples(calibration_data(on_cpu(data), model.inputs), recipe)


def _blueprint(lowered: Lowered, stages: Stages, recipe: Recipe, pending: tuple[str, ...]) -> Blueprint:
    final: FloatModel = stages.equalized.value
    for step in stages.tuned:
        final = tuned_model(final, step.value)
    norms, arrays = find_batch_norms(lowered.model, stages.prepared.value, final)
    folded = sum(node.op_type == "BatchNormalization" for node in lowered.model.graph) - len(norms)
    notes = [*pending, *stages.notes]
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
        arguments=lowered.arguments,
        notes=tuple(notes),
    )


def _untuned(model: FloatModel, steps: tuple[Handle[Tuned], ...]) -> dict[str, npt.NDArray[np.float32]]:
    initializers = model.model.graph.initializers
    values = {name: initializers[name].const_value for step in steps for name in step.value.weights}
    return {name: np.asarray(value.numpy(), np.float32) for name, value in values.items() if value is not None}


def _lowered(model: GraphLike) -> Lowered:
    if isinstance(model, fx.GraphModule):
        refuse_quantized(model, "quantize_graph")
        _require_values(model)
        return lower(model)
    if isinstance(model, torch.nn.Module):
        raise ModelError(
            f"a model must be captured before it is quantized, got a plain {type(model).__name__}; call "
            "quantry.torch.capture(model, example) first"
        )
    if not isinstance(model, ir.Model | str | os.PathLike | bytes) and not hasattr(model, "SerializeToString"):
        raise ModelError(
            f"a model must be a captured graph or a float ONNX model, got {type(model).__name__}; in quantize_graph"
        )
    graph = model if isinstance(model, ir.Model) else read_model(model)
    return Lowered(graph, {}, None, {})


def _require_values(model: fx.GraphModule) -> None:
    """Refuse weights that no ONNX model can be made from; of float16 the preparation speaks, which can convert it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ModelError(
                f"weights must hold values, got {name!r} on the meta device; load the model's weights before it is "
                "captured; in quantize_graph"
            )
        if tensor.dtype in (torch.bfloat16, torch.float64):
            raise ModelError(
                f"a model to quantize must compute in float32, got {name!r} of {tensor.dtype}; capture model.float() "
                "with an example in float32; in quantize_graph"
            )


def _with_exclusions(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, *names))
    return replace(recipe, plan=replace(recipe.plan, selection=selection))
