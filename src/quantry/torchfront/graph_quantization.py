"""Quantizes a captured graph, or an ONNX model, after training and returns a torch module."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import fx

from quantry.data.open_data import calibration_data
from quantry.errors import ModelError, RecipeError, SelectionError, known_keywords
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source, read_model
from quantry.memo import Memo, Store, Trace
from quantry.notes import Note, NoteKind
from quantry.numerics.torch_quantizer import FLOAT_TYPES
from quantry.pipeline import Stages, calibration_samples, run_prepare, run_quantize
from quantry.plan import planned_bodies
from quantry.plan.selection import meant, name_pattern
from quantry.recipe import Dynamic, PerChannel, PerTensor, Recipe, TuneStep, resolve_recipe
from quantry.recipe.checked import KnownArguments
from quantry.torchfront.freezing import current_params
from quantry.torchfront.lowering import Lowered, Scope, lower
from quantry.torchfront.module_definition import ModuleDefinition, find_batch_norms
from quantry.torchfront.quantized_module import (
    QuantizedModule,
    build,
    build_in_place_of,
    refuse_quantized,
    require_quantized,
)
from quantry.torchfront.undo_conversions import clipped_nodes, converted_constants, converted_nodes
from quantry.tune import tune, tuned_model, tuned_params

GraphLike: TypeAlias = "fx.GraphModule | ir.Model | str | os.PathLike[str] | bytes"
"""A captured graph, or a float ONNX model."""


_NO_DATA = Note.of(
    "no calibration data given: ranges come from one random sample, uniform in [0, 1), so the module is useless until "
    "it has been trained with scales that follow the data",
    NoteKind.NO_DATA,
)
_OTHER_NAMES = {"dataloader": "data", "calibration_data": "data", "config": "recipe", "quant_config": "recipe"}


@dataclass(frozen=True)
class FloatScopes(KnownArguments):
    """Parts of the user's model that stay float.

    Attributes:
        modules: Dotted paths of submodules. ``*`` matches anything; an entry that starts with ``^`` is a regular
            expression. Everything inside stays float.
        types: Module classes or their names. Every instance stays float, with everything inside.
        tensors: Names of tensors in the captured graph, with the same patterns. The operator that computes each stays
            float.
    """

    modules: tuple[str, ...] = ()
    types: tuple[Any, ...] = ()
    tensors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("modules", "types", "tensors"):
            entries = getattr(self, name)
            object.__setattr__(self, name, (entries,) if isinstance(entries, str | type) else tuple(entries))


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

    Plan, statistics and scales are those of ``quantry.quantize`` on the same model, because the same stages compute
    them. Tuning steps of the recipe run too. The module can then be trained.

    Args:
        model: The result of `capture`, or a float ONNX model: its graph, bytes or path.
        data: Calibration data: a list of tensors, dicts or tuples, a DataLoader, or anything that ``quantry.quantize``
            takes. Of a tuple, only as many items are used as the model has inputs. None uses random data, with a
            warning and a note, if the recipe needs any.
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
    _require_scales(recipe)
    lowered = _lowered(model)
    memo = Memo(store, Trace())
    prepared = run_prepare(model_source(lowered.model), recipe, memo)
    recipe, pending = _without_bodies(recipe, prepared.value.model.graph, pending)
    if float_scopes is not None:
        recipe = _with_exclusions(recipe, nodes_in(float_scopes, lowered.scopes, prepared.value.model))
    present = {node.name for node in prepared.value.model.graph}
    outside = tuple(name for name, scope in lowered.scopes.items() if scope.outside and name in present)
    recipe = _with_exclusions(recipe, outside) if outside else recipe
    # The data is opened once, when the first stage needs it, and not at all if none does.
    calibration = functools.cache(
        lambda: calibration_samples(calibration_data(arrays_of(data), prepared.value.inputs), recipe)
    )
    if data is not None:
        calibration()  # Validate the data up front, even if no stage will read it.
    stages = run_quantize(prepared, calibration, recipe, memo)
    if data is None and calibration.cache_info().currsize:
        pending = (_NO_DATA, *pending)
    clipped, notes = clipped_nodes(lowered.model, stages.equalized.value, recipe, memo, calibration)
    definition = _definition(lowered, stages, recipe, (*pending, *notes))
    _require_exportable_types(definition)
    module = build(replace(definition, original_nodes={**definition.original_nodes, **clipped}))
    if isinstance(model, fx.GraphModule):
        module.to(next((tensor.device for tensor in model.parameters()), torch.device("cpu")))
        _keep_frozen(module, model)
    module.eval()
    return module


def _require_scales(recipe: Recipe) -> None:
    if isinstance(recipe.emit.format, Dynamic):
        raise RecipeError(
            "the torch path needs scales that are known before the model runs, got the format Dynamic in recipe "
            f"{recipe.name!r}; use quantry.quantize on a float ONNX model"
        )


def _require_exportable_types(definition: ModuleDefinition) -> None:
    for quantizer in QuantizedView(definition.plan, definition.params):
        spec = quantizer.spec
        plain = spec.dtype.is_integer and isinstance(spec.granularity, PerTensor | PerChannel)
        if not plain and spec.dtype not in FLOAT_TYPES:
            raise RecipeError(
                f"the torch path quantizes to integers per tensor or per channel and to 16-bit floats, got "
                f"{spec.dtype.value} with {spec.granularity} for {quantizer.name!r}; use quantry.quantize on the "
                "exported model"
            )


def _without_bodies(recipe: Recipe, graph: ir.Graph, notes: tuple[Note, ...]) -> tuple[Recipe, tuple[Note, ...]]:
    """Return a recipe that leaves activations inside bodies float, and notes: bodies in torch have no quantizers."""
    if not planned_bodies(graph, recipe):
        return recipe, notes
    message = (
        "activations inside the bodies of control flow stay float in a module; quantry.quantize quantizes them too"
    )
    return replace(recipe, plan=replace(recipe.plan, body_activations=False)), (*notes, Note.of(message))


def tune_weights(module: QuantizedModule, data: Any, steps: Iterable[TuneStep]) -> QuantizedModule:
    """Run label-free tuning algorithms such as GPTQ with the scales that a module has now.

    ``quantize_graph`` and ``ModelQuantizer`` run them right after calibration. If `choose_scales` or `balance_channels`
    changed the scales since, the algorithms have to round to the new ones. Weights start from those that the module
    was quantized with.

    Args:
        module: The result of quantization after training; it is not changed.
        data: Calibration data, as for ``quantize_graph``.
        steps: The algorithms in order: objects of ``quantry.recipe`` such as ``Gptq()``.

    Returns:
        A new module in evaluation mode, with fixed scales. Batch normalizations of tuned layers are folded.

    Raises:
        ModelError: The module is not quantized, or is frozen.
        RecipeError: There are no steps.
    """
    require_quantized(module, "tune_weights")
    start, algorithms = module.definition, tuple(steps)
    if not algorithms:
        raise RecipeError("tune_weights needs at least one algorithm, got none; pass for example steps=[Gptq()]")
    if module.is_frozen:
        raise ModelError("a module must be tuned before it is frozen, got a frozen one; in tune_weights")
    model, params = start.model, current_params(module)
    samples = calibration_data(arrays_of(data), model.inputs)
    tuned_names: set[str] = set()
    for step in algorithms:
        done = tune(start.model, model, start.plan, params, samples, step)
        model = tuned_model(model, done)
        params = tuned_params(model, start.plan, done, start.recipe.scale.npu)
        tuned_names |= set(done.weights)
    original = _values_of(start.model, tuned_names - start.original_weights.keys())
    final = replace(start, model=model, params=params, original_weights={**start.original_weights, **original})
    return build_in_place_of(module, final, tuned_names)


# -- from the stages to a module ---------------------------------------------------------------------------------------


def _definition(lowered: Lowered, stages: Stages, recipe: Recipe, pending: tuple[Note, ...]) -> ModuleDefinition:
    final: FloatModel = stages.equalized.value
    for step in stages.tuned:
        final = tuned_model(final, step.value)
    norms, arrays = find_batch_norms(lowered.model, stages.prepared.value, final)
    folded = sum(node.op_type == "BatchNormalization" for node in lowered.model.graph) - len(norms)
    notes = [*pending, *stages.notes]
    if folded:
        notes.append(Note.of("{count} batch normalizations are folded and cannot be trained", count=folded))
    nodes, constants = {}, {}
    if recipe.prepare.npu is not None:
        models = stages.prepared.value.model, stages.equalized.value.model
        nodes, constants = converted_nodes(*models), converted_constants(*models)
    tuned_names = {name for step in stages.tuned for name in step.value.weights}
    return ModuleDefinition(
        model=final,
        plan=stages.plan.value,
        params=stages.params.value,
        recipe=recipe,
        batch_norms=norms,
        arrays=arrays,
        original_weights=_values_of(stages.equalized.value, tuned_names) | constants,
        original_nodes=nodes,
        frozen=lowered.buffers - {name for norm in norms.values() for name in norm.norm[:2]},
        trained=lowered.parameters,
        signature=lowered.signature,
        constants=lowered.constants,
        arguments=lowered.arguments,
        notes=tuple(notes),
    )


def _values_of(model: FloatModel, names: Iterable[str]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the values of some initializers."""
    values = {name: model.model.graph.initializers[name].const_value for name in names}
    return {name: np.asarray(value.numpy(), np.float32) for name, value in values.items() if value is not None}


def _keep_frozen(module: QuantizedModule, model: fx.GraphModule) -> None:
    """Freeze the weights that the user's model does not train.

    A model in which no weight is trained was prepared for inference, not frozen on purpose: its weights stay trainable.
    """
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if len(frozen) < len(dict(model.named_parameters())):
        paths = {module.layout.tensors[name] for name in frozen & set(module.layout.tensors)}
        for path, parameter in module.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and path not in paths)


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
    """Raise for weights that ONNX cannot hold. float16 is left to the prepare stage, which can convert it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ModelError(
                f"weights must have values, got {name!r} on the meta device; load the model's weights before it is "
                "captured; in quantize_graph"
            )
        if tensor.dtype in (torch.bfloat16, torch.float64):
            raise ModelError(
                f"a model to quantize must compute in float32, got {name!r} of {tensor.dtype}; capture model.float() "
                "with an example in float32; in quantize_graph"
            )


# -- parts that stay float ---------------------------------------------------------------------------------------------


def nodes_in(scopes: FloatScopes, node_scopes: Mapping[str, Scope], model: ir.Model) -> tuple[str, ...]:
    """Return the names of the nodes that stay float.

    Args:
        scopes: The parts that stay float.
        node_scopes: The scope of each node, by node name.
        model: The prepared model; nodes that folding has removed are not returned.

    Raises:
        RecipeError: `scopes` has another type.
        SelectionError: An entry matches nothing.
    """
    if not isinstance(scopes, FloatScopes):
        raise RecipeError(
            f"float_scopes must be FloatScopes(modules=..., types=..., tensors=...), got {scopes!r}; in quantize_graph"
        )
    present = {node.name or "": node for node in model.graph}
    selected: dict[str, None] = {}
    for path in scopes.modules:
        matches = name_pattern(path, "FloatScopes.modules")
        hits = [name for name, scope in node_scopes.items() if any(map(matches, scope.paths))]
        paths = (outer for scope in node_scopes.values() for outer in scope.paths)
        selected |= dict.fromkeys(_checked(path, hits, paths, "module"))
    for kind in scopes.types:
        class_name = kind if isinstance(kind, str) else kind.__name__
        hits = [name for name, scope in node_scopes.items() if class_name in scope.classes]
        classes = (entry for scope in node_scopes.values() for entry in scope.classes)
        selected |= dict.fromkeys(_checked(class_name, hits, classes, "module class"))
    producers = {output.name or "": name for name, node in present.items() for output in node.outputs}
    for tensor in scopes.tensors:
        matches = name_pattern(tensor, "FloatScopes.tensors")
        hits = [producer for name, producer in producers.items() if matches(name)]
        selected |= dict.fromkeys(_checked(tensor, hits, producers, "tensor"))
    return tuple(name for name in selected if name in present)


def _checked(entry: str, hits: list[str], candidates: Iterable[str], kind: str) -> list[str]:
    if not hits:
        names = sorted(set(candidates) - {""})
        raise SelectionError(
            f"every float scope must name a {kind} of the captured model, got {entry!r}"
            f"{meant(entry, names)}; it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        )
    return hits


def _with_exclusions(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, *names))
    return replace(recipe, plan=replace(recipe.plan, selection=selection))


# -- calibration data --------------------------------------------------------------------------------------------------


def arrays_of(data: Any) -> Any:
    """Return calibration data with NumPy arrays in place of tensors; other data are returned unchanged."""
    if isinstance(data, torch.Tensor):
        return data.detach().cpu().numpy()
    if isinstance(data, list | tuple):
        return [_sample(sample) for sample in data]
    if isinstance(data, torch.utils.data.DataLoader):
        return (_sample(sample) for sample in data)
    return data


def _sample(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        # NumPy has no bfloat16.
        return np.asarray(sample.detach().cpu().float() if sample.dtype == torch.bfloat16 else sample.detach().cpu())
    if isinstance(sample, dict):
        return dict(_named(sample))
    if isinstance(sample, list | tuple):
        return tuple(_sample(value) for value in torch.utils._pytree.tree_leaves(sample))
    return sample


def _named(sample: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield arrays by the names that torch.export gives to nested arguments: ``p_x`` for ``p["x"]``."""
    entries = sample.items() if isinstance(sample, dict) else enumerate(sample)
    for key, value in entries:
        name = f"{prefix}{key}"
        if isinstance(value, dict | list | tuple):
            yield from _named(value, f"{name}_")
        else:
            yield name, _sample(value)
