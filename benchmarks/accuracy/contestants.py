"""Who is compared: the float model, quantry's presets and the peers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.accuracy.schemes import GOALS, scheme
from benchmarks.rows.quantize import ONNXRUNTIME, QUANTRY, QUARK
from quantry.recipe import PRESETS


@dataclass(frozen=True)
class Contestant:
    """One way to get a model.

    Attributes:
        label: Its name in the table, beginning with the tool.
        task: The task that writes the quantized model; None is the float model itself.
        arguments: Further arguments of the task.
        peer: Runs in the peer's environment.
    """

    label: str
    task: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peer: bool = False


FLOAT = Contestant("float", None)

_QUARK_PRESETS = ("XINT8", "S8S8_AAWS", "U8S8_AAWS", "A8W8", "A16W8")
_QUARK_TRANSFORMER_PRESETS = ("INT8_TRANSFORMER_DEFAULT", "INT16_TRANSFORMER_DEFAULT")
_QUICK = ("XINT8", "S8S8_AAWS", "CPU_INT8")
_EVERYWHERE = ("XINT8", "S8S8_AAWS", "U8S8_AAWS", "A8W8", "A16W8", "CPU_INT8")
"""Presets that every model is quantized with; all others go through the suite where a preset takes seconds."""

_SMALL_SUITE = "cifar10"

AUTO_TARGETS = ("vitisai", "ort-cpu")
"""Targets that the default recipe is measured for: power-of-two int8 per tensor, and int8 on CPUs."""

# The NPU's compiler needs fixed sizes, and sentences have many lengths: only the arithmetic is the NPU's.
_SENTENCE_TARGETS = ("npu-int8", "ort-cpu")


def quantry(preset: str) -> Contestant:
    """Return one of quantry's presets."""
    return Contestant(f"quantry {preset}", QUANTRY, {"recipe": preset})


def quark(preset: str) -> Contestant:
    """Return one of AMD Quark's presets, as published."""
    return Contestant(f"quark {preset}", QUARK, {"preset": preset}, peer=True)


def auto(target: str, effort: str = "default") -> Contestant:
    """Return what quantry's default recipe finds for a target, without labels."""
    label = f"quantry auto {target}" + ("" if effort == "default" else f" {effort}")
    return Contestant(label, QUANTRY, {"recipe": "auto", "target": target, "effort": effort})


def auto_contestants(suite: str, effort: str = "default") -> tuple[Contestant, ...]:
    """Return the default recipe for all targets that it is measured for."""
    targets = _SENTENCE_TARGETS if suite == "minilm_stsb" else AUTO_TARGETS
    return tuple(auto(target, effort) for target in targets)


def search_winner(preset: str) -> Contestant:
    """Return what quantry's search finds with the types of a preset, scoring models by their outputs only."""
    return Contestant(f"quantry search {preset}", "benchmarks.tasks.search_winner:quantize", {"recipe": preset})


ONNXRUNTIME_PER_CHANNEL = Contestant(
    "onnxruntime U8S8 per channel", ONNXRUNTIME, {"activation": "QUInt8", "per_channel": True, "method": "MinMax"}
)


def contestants(suite: str) -> tuple[Contestant, ...]:
    """Return everybody who is compared on a suite; a preset added to quantry joins the small suite by itself."""
    transformer = _QUARK_TRANSFORMER_PRESETS if suite == "minilm_stsb" else ()
    recommended = tuple(preset for preset in PRESETS if preset.startswith("RECOMMENDED"))
    ours = tuple(PRESETS) if suite == _SMALL_SUITE else (*_EVERYWHERE, *transformer, *recommended)
    schemes = tuple(name for name in GOALS.get(suite, {}) if name not in PRESETS)
    return (
        FLOAT,
        *(quantry(preset) for preset in ours),
        *(Contestant(f"quantry {name}", QUANTRY, {"recipe": scheme(name)}) for name in schemes),
        *auto_contestants(suite),
        search_winner("XINT8"),
        search_winner("CPU_INT8"),
        ONNXRUNTIME_PER_CHANNEL,
        *(quark(preset) for preset in (*_QUARK_PRESETS, *transformer)),
    )


def quick_contestants(suite: str) -> tuple[Contestant, ...]:
    """Return the few of the quick run; the peer only where it takes seconds."""
    return (
        FLOAT,
        *(quantry(preset) for preset in _QUICK),
        ONNXRUNTIME_PER_CHANNEL,
        *((quark("XINT8"),) if suite == "cifar10" else ()),
    )
