"""Options of GPTQ: ``UseGPTQ`` and the dict ``GPTQParams``."""

from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.nested import nested
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, sets
from quantry.recipe import DataType, Gptq, MinMax, MinMSE, PerChannel, PerGroup, PerTensor

_WIDTHS = {4: DataType.INT4, 8: DataType.INT8, 16: DataType.INT16}


def _use(draft: Draft, value: bool) -> Draft:
    if not value:
        return draft
    # As in AMD Quark only weights are quantized then, and in the order in which they stand.
    plan = replace(draft.plan, weights_only=True)
    return replace(draft, gptq=Gptq(order_by_activation=False), plan=plan)


def _bits(draft: Draft, value: int) -> Draft:
    if value not in _WIDTHS:
        raise RecipeError(
            f"extra_options['GPTQParams']['Bits'] must be one of {', '.join(map(str, _WIDTHS))}, got {value}"
        )
    changed: Draft = with_field(draft, "plan.weight.dtype", _WIDTHS[value])
    return changed


def _group(draft: Draft, value: int) -> Draft:
    if value == -1:
        return draft
    changed: Draft = with_field(draft, "plan.weight.granularity", PerGroup(value))
    return changed


def _granularity(draft: Draft, value: bool) -> Draft:
    changed: Draft = with_field(draft, "plan.weight.granularity", PerChannel() if value else PerTensor())
    return changed


def _least_squares(draft: Draft, value: bool) -> Draft:
    changed: Draft = with_field(draft, "scale.weight", MinMSE() if value else MinMax())
    return changed


def _row(key: str, kind: Kind, default: str, meaning: str, becomes: str, apply: Apply) -> OptionRow:
    return OptionRow(key, kind, default, meaning, becomes, apply)


def _tunes(name: str) -> dict[str, Any]:
    return {"becomes": f"tune.steps: Gptq.{name}", "apply": sets(f"gptq.{name}")}


GPTQ_ROWS = (
    _row("Bits", Kind.INT, "the weight's", "Width of weights: 4, 8 or 16.", "plan.weight.dtype", _bits),
    _row(
        "PerChannel",
        Kind.BOOL,
        "False",
        "One scale for each channel of a weight.",
        "plan.weight.granularity = PerChannel()",
        _granularity,
    ),
    _row(
        "GroupSize",
        Kind.INT,
        "-1",
        "Values that share a scale; -1 for all of a tensor or channel.",
        "plan.weight.granularity = PerGroup(size)",
        _group,
    ),
    _row("MSE", Kind.BOOL, "False", "Choose ranges by least squares.", "scale.weight", _least_squares),
    _row(
        "WeightSymmetric",
        Kind.BOOL,
        "True",
        "Fix zero points at the centre of the type.",
        "plan.weight.symmetric",
        sets("plan.weight.symmetric"),
    ),
    _row("BlockSize", Kind.INT, "128", "Columns rounded before the rest is updated.", **_tunes("block_size")),
    _row("PercDamp", Kind.FLOAT, "0.01", "Damping, as a part of the mean diagonal.", **_tunes("damping")),
    _row("ActOrder", Kind.BOOL, "False", "Columns with the strongest inputs first.", **_tunes("order_by_activation")),
)
"""Every key of ``GPTQParams``."""

ROWS = (
    OptionRow(
        "UseGPTQ",
        Kind.BOOL,
        "False",
        "Round weights with GPTQ; activations stay float.",
        "tune.steps = (Gptq(...),), plan.weights_only",
        _use,
    ),
    OptionRow(
        "GPTQParams",
        Kind.DICT,
        "{}",
        "Settings of GPTQ, below.",
        "tune.steps, plan.weight",
        nested("GPTQParams", GPTQ_ROWS, "UseGPTQ", lambda draft: draft.gptq is not None),
    ),
)
