"""The stage "prepare": bring any float model into the regular form that the other stages rely on."""

import onnx_ir as ir

from quantry.graph.float_model import FloatModel
from quantry.graph.load import ModelSource
from quantry.graph.passes.average_pool_to_conv import average_pool_to_conv
from quantry.graph.passes.clip6_to_relu import clip6_to_relu
from quantry.graph.passes.convert_opset import convert_opset, ir_version_for
from quantry.graph.passes.fix_dimensions import fix_dimensions
from quantry.graph.passes.float16 import check_float_type, float16_to_float32
from quantry.graph.passes.fold_batch_norm import fold_batch_norm
from quantry.graph.passes.fold_constants import fold_constants
from quantry.graph.passes.fold_pads import fold_pads
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.inline_constant_if import inline_constant_if
from quantry.graph.passes.lift_body_weights import lift_body_weights
from quantry.graph.passes.remove_identities import remove_identities
from quantry.graph.passes.split_shared_weights import split_shared_weights
from quantry.graph.passes.tidy import (
    forget_placeholders,
    inputs_without_initializers,
    name_nodes,
    remove_unused,
    separate_outputs,
    sort_nodes,
)
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.notes import Note, NoteKind, added_up
from quantry.prepare.hard_swish import restore_hard_swish
from quantry.prepare.npu import convert
from quantry.prepare.preflight import check_model
from quantry.recipe import PrepareOptions
from quantry.runtime.acceptance import check_accepted
from quantry.runtime.environment import depends_on
from quantry.runtime.sessions import run_once

OLDEST_OPSET = 13
"""First opset with per-axis QuantizeLinear and with axes and limits as inputs, so that later rules see one form."""

_ROUNDS = 8  # folding one shape reveals the next; real models need two or three rounds


@stage(name="prepare", version=7, environment=depends_on("onnx", "onnx_ir", "numpy", "onnxruntime"))
def prepare(source: ModelSource, options: PrepareOptions) -> FloatModel:
    """Return the prepared float model.

    Args:
        source: The float model.
        options: The optional steps.

    Raises:
        ModelError: The model cannot be used; the message says why and what to do.
    """
    model, notes = _named(source)
    if options.float16_to_float32:
        notes += float16_to_float32(model)
    check_float_type(model, source.label)
    if options.batch is not None or options.dimensions:
        notes += fix_dimensions(model, options.batch, {axis.name: axis.size for axis in options.dimensions})
    model, raised = _at_opset(model, max(OLDEST_OPSET, options.opset or 0))
    notes += raised
    notes += _settle(model, options)
    if options.fold_batch_norm:
        notes += fold_batch_norm(model)
    if options.restore_hard_swish:
        notes += restore_hard_swish(model)
        notes += remove_unused(model)
    if options.clip6_to_relu:
        notes += clip6_to_relu(model)
    if options.average_pool_to_conv:
        notes += average_pool_to_conv(model)
    if options.fold_pads:
        notes += fold_pads(model)
    notes += lift_body_weights(model)
    notes += split_shared_weights(model)
    notes += remove_unused(model)
    model.ir_version = ir_version_for(model.opset_imports[""], model.ir_version)
    if options.infer_shapes:
        infer_shapes(model)
    prepared = FloatModel(rebuilt(model), tuple(notes))
    return prepared if options.npu is None else convert(prepared, options.npu)


def named_model(source: ModelSource) -> ir.Model:
    """Return the user's model with the node names that every later stage uses."""
    return _named(source)[0]


def _named(source: ModelSource) -> tuple[ir.Model, list[Note]]:
    model = source.load()
    forget_placeholders(model)
    notes = [*check_model(model, source.label), *sort_nodes(model)]
    notes += inputs_without_initializers(model)
    notes += separate_outputs(model)
    notes += name_nodes(model)
    check_accepted(model, source.label)
    return model, notes


def _at_opset(model: ir.Model, opset: int) -> tuple[ir.Model, tuple[Note, ...]]:
    current = model.opset_imports[""]
    if current >= opset:
        return model, ()
    converted = convert_opset(model, opset)
    name_nodes(converted)
    return converted, (Note.of("raised opset {old} to {new}", NoteKind.GRAPH, old=current, new=opset),)


def _settle(model: ir.Model, options: PrepareOptions) -> tuple[Note, ...]:
    """Infer shapes, fold constants and remove identities until nothing changes, because each enables the others."""
    notes: list[Note] = []
    for _ in range(_ROUNDS):
        if options.infer_shapes:
            infer_shapes(model)
        done = (
            *(fold_constants(model, run_once) if options.fold_constants else ()),
            *(inline_constant_if(model) if options.fold_constants else ()),
            *(remove_identities(model) if options.remove_identities else ()),
        )
        notes += done
        if not done:
            break
    return added_up(notes)
