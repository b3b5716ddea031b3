"""How time and memory grow with layers, images and model size."""

from typing import Any

from benchmarks.harness import Comparison, Goal, Row, Side
from benchmarks.rows.quantize import ONNXRUNTIME, QUANTRY, QUARK, method_recipe
from benchmarks.workloads import ConvChain, LargeModel, SharedModel
from quantry.recipe import MinMax

_PRESET = {"recipe": "S8S8_AAWS"}
_ONNXRUNTIME = {"activation": "QInt8", "method": "Percentile"}
"""The nearest that onnxruntime.quantization has; it equalizes nothing."""


def _chain_sides(tool: str, task: str, arguments: dict[str, Any], layers: tuple[int, ...]) -> tuple[Side, ...]:
    peer = tool == "quark"
    return tuple(Side(f"{tool}, {n} layers", task, arguments, ConvChain(n), peer=peer) for n in layers)


_LAYERS = Row(
    name="growth/layers",
    title="Chains of 100, 200 and 400 convolutions, S8S8_AAWS, 4 samples",
    sides=(
        *_chain_sides("quantry", QUANTRY, _PRESET, (100, 200, 400)),
        *_chain_sides("onnxruntime", ONNXRUNTIME, _ONNXRUNTIME, (100, 400)),
        *_chain_sides("quark", QUARK, {"preset": "S8S8_AAWS"}, (100, 200, 400)),
    ),
    comparisons=(
        Comparison("quantry, 400 layers", "quantry, 100 layers", (Goal("seconds", at_most=5),), larger_is_better=False),
        Comparison("quark, 400 layers", "quark, 100 layers"),
        Comparison("onnxruntime, 400 layers", "onnxruntime, 100 layers"),
        Comparison("onnxruntime, 400 layers", "quantry, 400 layers"),
        Comparison("quark, 400 layers", "quantry, 400 layers"),
    ),
)

_LAYERS_QUICK = Row(
    name="growth/layers/quantry",
    title="Chains of 100 and 400 convolutions, quantry alone",
    sides=_chain_sides("quantry", QUANTRY, _PRESET, (100, 400)),
    comparisons=_LAYERS.comparisons[:1],
    quick=True,
)

_IMAGE_COUNTS = (32, 64, 128, 256, 512)

_IMAGES = Row(
    name="growth/images",
    title="32 to 512 images, S8S8_AAWS (Percentile), yolox_nano",
    sides=(
        *(Side(f"quantry, {n} images", QUANTRY, _PRESET, SharedModel("yolox_nano", n)) for n in _IMAGE_COUNTS),
        *(
            Side(
                f"onnxruntime, {n} images",
                ONNXRUNTIME,
                _ONNXRUNTIME,
                SharedModel("yolox_nano", n),
            )
            for n in (32, 64, 512)
        ),
    ),
    comparisons=(
        Comparison(
            "quantry, 512 images",
            "quantry, 32 images",
            (Goal("seconds", at_most=16), Goal("peak_bytes", at_most=1.0, allowance=64 * 2.0**20)),
            larger_is_better=False,
        ),
        Comparison("onnxruntime, 64 images", "onnxruntime, 32 images"),
    ),
    repetitions=2,
)


def _size_row(name: str, workload: LargeModel) -> Row:
    return Row(
        name=f"growth/size/{name}",
        title=f"Matrix products with {name} of weights in an external file, int8 symmetric, MinMax, 1 sample",
        sides=(
            Side("quantry", QUANTRY, {"recipe": method_recipe(MinMax())}, workload),
            Side("onnxruntime", ONNXRUNTIME, {"activation": "QInt8", "symmetric": True, "method": "MinMax"}, workload),
            Side("quark", QUARK, {"method": "MinMax"}, workload, peer=True),
        ),
        comparisons=(Comparison("onnxruntime", "quantry"), Comparison("quark", "quantry")),
        repetitions=2,
        timeout=900.0,
    )


ROWS = (
    _LAYERS_QUICK,
    _LAYERS,
    _IMAGES,
    _size_row("10 MB", LargeModel(1024, 3)),
    _size_row("100 MB", LargeModel(2048, 6)),
    _size_row("1 GB", LargeModel(2048, 64)),
    _size_row("3 GB", LargeModel(2048, 192)),
)
