"""Calibrating and quantizing one real model, for each preset and each calibration method."""

from typing import Any

from benchmarks.harness import Comparison, Goal, Row, Side, Workload
from benchmarks.workloads import SharedModel
from quantry.recipe import (
    Entropy,
    Method,
    MinMax,
    MinMSE,
    Percentile,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
    to_plain,
)

QUANTRY = "benchmarks.tasks.quantry_tool:quantize"
ONNXRUNTIME = "benchmarks.tasks.onnxruntime_tool:quantize"
QUARK = "benchmarks.tasks.quark_tool:quantize"

_PRESETS: tuple[tuple[str, dict[str, Any] | None], ...] = (
    # For each preset, the nearest that onnxruntime.quantization can do; it has no power-of-two scales.
    ("XINT8", None),
    ("S8S8_AAWS", {"activation": "QInt8", "method": "Percentile"}),
    ("A8W8", {"activation": "QInt8", "symmetric": True, "method": "MinMax"}),
    ("A16W8", {"activation": "QInt16", "symmetric": True, "method": "MinMax"}),
)

_METHODS: tuple[tuple[str, Method], ...] = (
    ("MinMax", MinMax()),
    ("Percentile", Percentile()),
    ("Entropy", Entropy()),
    ("MinMSE", MinMSE()),
)

_FEW, _MANY = 32, 128


def method_recipe(method: Method) -> dict[str, Any]:
    """Return a plain recipe of symmetric int8 with that method; MinMSE goes with power-of-two scales."""
    spec = TensorSpec(scale=PowerOfTwoScale()) if isinstance(method, MinMSE) else TensorSpec()
    plan = PlanOptions(activation=spec, weight=spec, force_pass_through=True)
    return dict(to_plain(Recipe(plan=plan, scale=ScaleOptions(activation=method))))


def _preset_row(preset: str, peer: dict[str, Any] | None, samples: int) -> Row:
    workload = SharedModel("yolox_nano", samples)
    sides = [Side("quantry", QUANTRY, {"recipe": preset}, workload)]
    if peer is not None:
        sides.append(Side("onnxruntime", ONNXRUNTIME, peer, workload))
    sides.append(Side("quark", QUARK, {"preset": preset}, workload, peer=True))
    goals = (Goal("seconds", at_least=8),) if preset == "XINT8" else ()
    return _row(f"quantize/{preset}/{samples}", f"Preset {preset}, yolox_nano, {samples} images", tuple(sides), goals)


def _method_row(name: str, method: Method, samples: int) -> Row:
    workload = SharedModel("yolox_nano", samples)
    sides = [Side("quantry", QUANTRY, {"recipe": method_recipe(method)}, workload)]
    if not isinstance(method, MinMSE):
        same = {"activation": "QInt8", "symmetric": True, "method": name}
        sides.append(Side("onnxruntime", ONNXRUNTIME, same, workload))
    sides.append(Side("quark", QUARK, {"method": name}, workload, peer=True))
    title = f"Calibration method {name}, int8 symmetric, yolox_nano, {samples} images"
    return _row(f"method/{name}/{samples}", title, tuple(sides))


def _row(name: str, title: str, sides: tuple[Side, ...], goals: tuple[Goal, ...] = ()) -> Row:
    others = tuple(side.label for side in sides if side.label != "quantry")
    comparisons = tuple(Comparison(other, "quantry", goals) for other in others)
    return Row(name, title, sides, comparisons)


def _quick_row() -> Row:
    workload: Workload = SharedModel("cifar10", _FEW)
    sides = (
        Side("quantry", QUANTRY, {"recipe": "S8S8_AAWS"}, workload),
        Side("onnxruntime", ONNXRUNTIME, {"activation": "QInt8", "method": "Percentile"}, workload),
        Side("quark", QUARK, {"preset": "S8S8_AAWS"}, workload, peer=True),
    )
    comparisons = tuple(Comparison(label, "quantry") for label in ("onnxruntime", "quark"))
    title = f"Preset S8S8_AAWS, a small model (resnet20), {_FEW} images"
    return Row("quantize/small", title, sides, comparisons, quick=True)


ROWS = (
    _quick_row(),
    *(_preset_row(preset, peer, samples) for samples in (_FEW, _MANY) for preset, peer in _PRESETS),
    *(_method_row(name, method, samples) for samples in (_FEW, _MANY) for name, method in _METHODS),
)
