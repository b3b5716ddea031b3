"""Stage 7: write the quantized model as ONNX, one file per format."""

from quantry.emit.bodies import place_bodies
from quantry.emit.exact_integers import may_use_exact_integers, use_exact_integers
from quantry.emit.fix_neuron import FIX_NEURON
from quantry.emit.graph_editor import WIDE_TYPES_SINCE_OPSET
from quantry.emit.local_functions import CONTRIB, QUARK, STANDARD, VITIS, Dialect, FunctionCollector, thin_function
from quantry.emit.look_ups import use_look_ups
from quantry.emit.pairs import MOVED_BY_RUNTIME, REWRITE_SINCE_OPSET, position_attributes
from quantry.emit.stage import EMITTERS, emit

__all__ = [
    "CONTRIB",
    "EMITTERS",
    "FIX_NEURON",
    "MOVED_BY_RUNTIME",
    "QUARK",
    "REWRITE_SINCE_OPSET",
    "STANDARD",
    "VITIS",
    "WIDE_TYPES_SINCE_OPSET",
    "Dialect",
    "FunctionCollector",
    "emit",
    "may_use_exact_integers",
    "place_bodies",
    "position_attributes",
    "thin_function",
    "use_exact_integers",
    "use_look_ups",
]
