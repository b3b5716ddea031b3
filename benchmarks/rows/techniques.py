"""What makes quantized models better without training: equalization, SmoothQuant and mixed precision."""

from dataclasses import replace
from typing import Any

from benchmarks.harness import Comparison, Row, Side
from benchmarks.rows.quantize import QUANTRY, QUARK, method_recipe
from benchmarks.workloads import SharedModel
from quantry.recipe import CrossLayer, EqualizeOptions, MinMax, SmoothQuant, from_plain, to_plain

_SAMPLES = 32


def _equalized(equalize: EqualizeOptions) -> dict[str, Any]:
    return dict(to_plain(replace(from_plain(method_recipe(MinMax())), equalize=equalize)))


def _row(name: str, title: str, suite: str, recipe: Any, quark: dict[str, Any]) -> Row:
    workload = SharedModel(suite, _SAMPLES)
    return Row(
        name=f"technique/{name}",
        title=f"{title}, {suite}, {_SAMPLES} samples",
        sides=(
            Side("quantry", QUANTRY, {"recipe": recipe}, workload),
            Side("quark", QUARK, quark, workload, peer=True),
        ),
        comparisons=(Comparison("quark", "quantry"),),
    )


ROWS = (
    _row(
        "equalization",
        "Cross-layer equalization, int8 symmetric, MinMax",
        "mobilenetv2_035",
        _equalized(EqualizeOptions(CrossLayer())),
        {"method": "MinMax", "include": ["cle"]},
    ),
    _row(
        "smoothquant",
        "SmoothQuant of matrix products (alpha 0.5), int8 symmetric, MinMax",
        "minilm_stsb",
        # The peer looks at matrix products alone and puts a multiplication in front of each.
        _equalized(EqualizeOptions(smooth=SmoothQuant(alpha=0.5, operators=("MatMul",), insert=True))),
        {"method": "MinMax", "include": ["sq"]},
    ),
    _row(
        "mixed precision",
        "Mixed precision, preset S16S16_MIXED_S8S8",
        "cifar10",
        "S16S16_MIXED_S8S8",
        {"preset": "S16S16_MIXED_S8S8"},
    ),
)
