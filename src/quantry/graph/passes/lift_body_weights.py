r"""Move weights out of the bodies of If, Loop and Scan.

::

    If -> then: MatMul (x, w)    with w inside       becomes       w in the main graph -> If -> then: MatMul (x, w)

A body reads tensors of the graphs around it by name. In the main graph a weight can be quantized, and it is then
dequantized once per run, not once per iteration.
"""

import onnx_ir as ir

from quantry.facts.operators import LINEAR, Family, of_family
from quantry.graph.edit import FreshNames
from quantry.graph.weights import initializer_of, renamed
from quantry.notes import Note, NoteKind

_WEIGHT_INPUTS = dict.fromkeys(LINEAR, (1,)) | dict.fromkeys(of_family(Family.RECURRENT), (1, 2))


def lift_body_weights(model: ir.Model) -> tuple[Note, ...]:
    """Make float weights of layers inside bodies initializers of the main graph, under unique names."""
    bodies = tuple(model.graph.subgraphs())
    names = FreshNames(model) if bodies else None
    lifted = 0
    for body in bodies:
        for name, value in tuple(body.initializers.items()):
            if names is None or value.const_value is None or value.dtype != ir.DataType.FLOAT:
                continue
            if value.is_graph_output() or not any(_is_weight(use.node, use.idx) for use in value.uses()):
                continue
            moved = initializer_of(renamed(value.const_value, names.value(name)))
            model.graph.register_initializer(moved)
            for use in tuple(value.uses()):
                use.node.replace_input_with(use.idx, moved)
            del body.initializers[name]
            lifted += 1
    message = "moved {count} weights out of the bodies of control flow"
    return (Note.of(message, NoteKind.GRAPH, count=lifted),) if lifted else ()


def _is_weight(node: ir.Node, index: int) -> bool:
    return node.domain == "" and index in _WEIGHT_INPUTS.get(node.op_type, ())
