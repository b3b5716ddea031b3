"""The stage "emit": write the quantized model."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import onnx_ir as ir

from quantry.emit.dynamic import emit_dynamic
from quantry.emit.fix_neuron import emit_fix_neuron
from quantry.emit.fusion_barriers import flat_softmaxes
from quantry.emit.graph_editor import FIRST_OPSET, GROUPS_SINCE_OPSET, GraphEditor, Origin
from quantry.emit.graph_template import GraphTemplate, TemplateCache, signature
from quantry.emit.matmul_nbits import emit_matmul_nbits, has_other_weights
from quantry.emit.pairs import dedicate_pairs
from quantry.emit.qdq import emit_qdq
from quantry.emit.qoperator import emit_qoperator
from quantry.graph.edit import collection_paused
from quantry.graph.float_model import FloatModel
from quantry.graph.lone_layers import WEIGHT_ROUNDING_OPTIMIZER, lone_layers
from quantry.graph.passes import convert_opset, explicit_attributes
from quantry.graph.quant_plan import QuantPlan, SharedRange
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import INLINE_LIMIT_BYTES, ModelParts, model_parts, weight_bytes
from quantry.memo import stage
from quantry.notes import Note, NoteKind
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import (
    DataType,
    Dynamic,
    EmitOptions,
    FixNeuron,
    Format,
    MatMulNBits,
    PerGroup,
    Qdq,
    QOperator,
    TensorSpec,
    VitisQdq,
)
from quantry.runtime.environment import depends_on

EMITTERS: dict[type, Callable[[ir.Model, QuantPlan, QuantParams, Format], Mapping[str, Origin] | None]] = {
    Qdq: emit_qdq,
    QOperator: emit_qoperator,
    VitisQdq: emit_qdq,
    FixNeuron: emit_fix_neuron,
    Dynamic: emit_dynamic,
    MatMulNBits: emit_matmul_nbits,
}
"""One writer per format; it returns which data depends on the parameters, if it knows."""

_TEMPLATES = TemplateCache()

# onnxruntime 1.20 is the oldest supported runtime; it reads IR 10 and opset 21.
_OLDEST_RUNTIME_IR, _OLDEST_RUNTIME_OPSET = 10, 21
_FIRST_IR_WITH_FLOAT8, _FIRST_IR_WITH_4_BITS = 9, 10
_FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)


# Writing the graph takes less time than storing it and reading it back would.
@stage(name="emit", version=4, environment=depends_on("onnx", "onnx_ir"), stored=False)
def emit(
    model: FloatModel, plan: QuantPlan, params: QuantParams, options: EmitOptions, metadata: Mapping[str, str]
) -> QuantizedModel:
    """Write the plan into a copy of the float model.

    Args:
        model: The float model that was planned.
        plan: The tensors to quantize.
        params: Their scales and zero points.
        options: The format.
        metadata: Entries for the model's metadata, such as the recipe.

    Returns:
        The quantized model; the same inputs always give the same bytes.
    """
    template_signature = signature(params, options), flat_softmaxes(model.model, params)
    template = _TEMPLATES.find(model, plan, template_signature)
    if template is not None:
        again = partial(_written_again, model, plan, params, options, metadata)
        return QuantizedModel(again, template.notes, partial(template.filled, model, params, metadata))
    written, origins = _written(model, plan, params, options, metadata)
    notes = (*_notes(written, plan), *_lone_notes(model, plan, options))
    if origins is None:
        return QuantizedModel(written, notes)

    def parts() -> ModelParts | None:
        # Weights of subgraphs are inside the bytes of their nodes, and large models have theirs in a second file.
        if any(True for _ in written.graph.subgraphs()) or weight_bytes(written) > INLINE_LIMIT_BYTES:
            return None
        template = GraphTemplate.of(model_parts(written), origins, notes)
        _TEMPLATES.keep(model, plan, template_signature, template)
        return template.filled(model, params, metadata)

    return QuantizedModel(written, notes, parts)


def _written_again(*arguments: Any) -> ir.Model:
    return _written(*arguments)[0]


@collection_paused()
def _written(
    model: FloatModel, plan: QuantPlan, params: QuantParams, options: EmitOptions, metadata: Mapping[str, str]
) -> tuple[ir.Model, Mapping[str, Origin] | None]:
    """Return the graph, and which of its data depends on the parameters."""
    copy = _at_opset(model, plan, options.format)
    if options.explicit_attributes:
        explicit_attributes(copy)
    originals = GraphEditor(copy).values
    origins = EMITTERS[type(options.format)](copy, plan, params, options.format)
    if options.dedicated_pairs:
        dedicate_pairs(GraphEditor(copy), plan, originals)
    _drop_unused_constants(copy)
    copy.producer_name, copy.producer_version = "quantry", metadata.get("quantry.version", "")
    copy.metadata_props.clear()
    copy.metadata_props.update(sorted(metadata.items()))
    if copy.opset_imports[""] <= _OLDEST_RUNTIME_OPSET:
        copy.ir_version = min(copy.ir_version, _OLDEST_RUNTIME_IR)
    if any(spec.dtype.is_float8 for spec in plan.specs()):
        copy.ir_version = max(copy.ir_version, _FIRST_IR_WITH_FLOAT8)
    if any(value.dtype in _FOUR_BITS for value in copy.graph.initializers.values()):
        copy.ir_version = max(copy.ir_version, _FIRST_IR_WITH_4_BITS)
    return copy, origins


def _at_opset(model: FloatModel, plan: QuantPlan, options: Format) -> ir.Model:
    """Return a copy whose opset supports the types; only standard Q/DQ pairs depend on it."""
    copy = model.model.clone()
    needed = 0
    if isinstance(options, Qdq):
        needed = max((_first_opset(spec) for spec in plan.specs()), default=0)
    elif isinstance(options, MatMulNBits) and has_other_weights(copy, plan):
        needed = GROUPS_SINCE_OPSET
    return convert_opset(copy, needed) if needed > model.opset else copy


def _first_opset(spec: TensorSpec) -> int:
    return GROUPS_SINCE_OPSET if isinstance(spec.granularity, PerGroup) else FIRST_OPSET.get(spec.dtype, 0)


def _drop_unused_constants(model: ir.Model) -> None:
    # Rewriting the graph may leave unused constants; onnxruntime warns about each.
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and value not in model.graph.inputs:
            del model.graph.initializers[name]


def _lone_notes(model: FloatModel, plan: QuantPlan, options: EmitOptions) -> tuple[Note, ...]:
    """Name the layers that onnxruntime rounds although the plan leaves them float."""
    if not isinstance(options.format, Qdq | QOperator):
        return ()
    names = [node.name or "" for node in lone_layers(model.model.graph, plan.quantized_nodes, plan.activations)]
    if not names:
        return ()
    layers = "{layer!r}, which stays float between quantized tensors,"
    if len(names) > 1:
        layers = "{count} layers that stay float between quantized tensors, such as {layer!r},"
    advice = (
        " to 8 bits by itself; open the session with disabled_optimizers=[{optimizer!r}], or keep the nodes around in "
        "float too"
    )
    message = "onnxruntime rounds the weights of " + layers + advice
    return (Note.of(message, count=len(names), layer=names[0], optimizer=WEIGHT_ROUNDING_OPTIMIZER),)


def _notes(model: ir.Model, plan: QuantPlan) -> tuple[Note, ...]:
    notes = []
    if plan.is_empty:
        message = "nothing was quantized: no node is both selected and quantizable; see the reasons of the nodes"
        notes.append(Note.of(message, NoteKind.IMPORTANT))
    opset = model.opset_imports[""]
    if opset > _OLDEST_RUNTIME_OPSET:
        message = "the float model has opset {opset}, so onnxruntime 1.20 and 1.21 cannot load the result"
        notes.append(Note.of(message, opset=opset))
    narrow = {DataType.INT4, DataType.UINT4}
    ranges = (entry for entry in plan.activations.values() if not isinstance(entry, SharedRange))
    if any(entry.spec.dtype in narrow for entry in ranges):
        message = (
            "onnxruntime up to 1.31 computes 4-bit activations wrongly at ORT_ENABLE_ALL; run the model at "
            "ORT_ENABLE_BASIC"
        )
        notes.append(Note.of(message, NoteKind.IMPORTANT))
    return tuple(notes)
