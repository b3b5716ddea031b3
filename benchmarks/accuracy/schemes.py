"""Recipes of quantry that stand for a scheme of types, tuned or not, and what each shall reach."""

from dataclasses import replace
from typing import Any

from quantry.recipe import (
    DataType,
    EqualizeOptions,
    Gptq,
    MinMSE,
    Recipe,
    Rotation,
    SmoothQuant,
    TuneOptions,
    find_preset,
    to_plain,
)

NPU_UNTUNED = "XINT8 types, untuned"
CPU_UNTUNED = "CPU_INT8 types, untuned"
S8S8_TUNED = "S8S8 types, tuned"
W4A8_TUNED = "W4A8 types, tuned"
INTEGER = "XINT8, rotated"


def scheme(name: str) -> dict[str, Any]:
    """Return a scheme's recipe as plain data."""
    return dict(to_plain(_SCHEMES[name]()))


def _untuned(preset: str) -> Recipe:
    return replace(find_preset(preset).recipe, tune=TuneOptions())


def _s8s8() -> Recipe:
    plain = find_preset("S8S8_AAWS").recipe
    return replace(
        plain,
        equalize=EqualizeOptions(smooth=SmoothQuant(sweeps=2)),
        plan=replace(plain.plan, float_residuals=True),
        scale=replace(plain.scale, activation=MinMSE(after_functions=True)),
        tune=TuneOptions((Gptq(samples=64, damping=0.1),)),
    )


def _w4a8() -> Recipe:
    best = find_preset("RECOMMENDED-CPU").recipe
    return replace(best, plan=replace(best.plan, weight=replace(best.plan.weight, dtype=DataType.INT4)))


def _rotated() -> Recipe:
    plain = find_preset("XINT8").recipe
    return replace(plain, equalize=replace(plain.equalize, rotate=Rotation()))


_SCHEMES = {
    NPU_UNTUNED: lambda: _untuned("RECOMMENDED-NPU"),
    CPU_UNTUNED: lambda: _untuned("RECOMMENDED-CPU"),
    S8S8_TUNED: _s8s8,
    W4A8_TUNED: _w4a8,
    INTEGER: _rotated,
}

AUTO_SHARES = {"auto vitisai": 0.98, "auto npu-int8": 0.98, "auto ort-cpu": 0.99}
"""Least share of the float model's metric that the default recipe keeps, on every model."""

GOALS: dict[str, dict[str, float]] = {
    "yolox_tiny_click": {NPU_UNTUNED: 0.645, "RECOMMENDED-NPU": 0.676},
    "yolox_nano": {
        CPU_UNTUNED: 0.26,
        "RECOMMENDED-CPU": 0.284,
        "RECOMMENDED-NPU-MIXED": 0.284,
        "RECOMMENDED-NPU": 0.27,
    },
    "efficientnet_lite0": {
        "RECOMMENDED-NPU": 0.724,
        S8S8_TUNED: 0.729,
        "RECOMMENDED-CPU-W4A8-MIXED": 0.724,
        "RECOMMENDED-NPU-W4A8-MIXED": 0.724,
    },
    "mobilenetv2_035": {"RECOMMENDED-NPU": 0.570, S8S8_TUNED: 0.580},
    "cifar10": {"RECOMMENDED-NPU": 0.9140, W4A8_TUNED: 0.905},
    "minilm_stsb": {S8S8_TUNED: 0.815, "RECOMMENDED-NPU-MIXED": 0.80, "RECOMMENDED-NPU-INTEGER": 0.80, INTEGER: 0.80},
}
"""By model, the least value of a preset or scheme."""
