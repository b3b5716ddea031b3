"""Averages over space: summed as integers, then brought to the output's scale."""

import onnx_ir as ir

from quantry.emit.integer.unit import Unit

_CONTRIB = "com.microsoft"
_KEPT = ("auto_pad", "count_include_pad", "kernel_shape", "pads", "strides")


def average_pool(unit: Unit) -> ir.Node | None:
    """Return QLinearAveragePool; windows that it does not know stay float."""
    attributes = unit.node.attributes
    sides = unit.sides(1)
    dilated = any(step != 1 for step in attributes.get_ints("dilations", ()))
    rounds_up = attributes.get_int("ceil_mode", 0) == 1
    if sides is None or dilated or rounds_up:
        return None
    kept = {name: attributes[name].value for name in _KEPT if name in attributes}
    return unit.make((_CONTRIB, "QLinearAveragePool"), (*sides[0].triple, *unit.output.pair), kept)


def global_average_pool(unit: Unit) -> ir.Node | None:
    """Return QLinearGlobalAveragePool."""
    sides = unit.sides(1)
    if sides is None:
        return None
    inputs = (*sides[0].triple, *unit.output.pair)
    return unit.make((_CONTRIB, "QLinearGlobalAveragePool"), inputs, {"channels_last": 0})
