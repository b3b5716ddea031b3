"""Which options of a search space have a bearing only beside certain values of others."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

EXTRA = "extra_options."
FINETUNE = f"{EXTRA}FastFinetune."


@dataclass(frozen=True)
class Condition:
    """An option means something only where another has a certain value.

    Attributes:
        owner: Name of the other option.
        holds: Whether a value of the other is such a one.
        default: The value of the other where neither the space nor the starting configuration sets it.
        reads: How the condition is told.
    """

    owner: str
    holds: Callable[[Any], bool]
    default: Any
    reads: str


def _method(*names: str) -> Condition:
    # Members of onnxruntime's enumerations count as ours of the same name.
    def holds(value: Any) -> bool:
        return isinstance(value, enum.Enum) and f"{type(value).__name__}.{value.name}" in names

    return Condition("calibrate_method", holds, None, f"calibrate_method is {' or '.join(names)}")


def _switch(owner: str, *, default: bool = False) -> Condition:
    return Condition(owner, bool, default, f"{owner} is True")


def _algorithm(name: str) -> Condition:
    return Condition(
        f"{FINETUNE}OptimAlgorithm",
        lambda value: str(value).casefold() == name,
        "adaround",
        f"FastFinetune's OptimAlgorithm is {name!r}",
    )


_MIN_MAX = _method("CalibrationMethod.MinMax")
_LAYER_WISE = _method("LayerWiseMethod.LayerWisePercentile")
_ENTROPY = _method("CalibrationMethod.Entropy")

_CONDITIONS: Mapping[str, Condition] = {
    f"{EXTRA}CalibMovingAverage": _MIN_MAX,
    f"{EXTRA}CalibMovingAverageConstant": _switch(f"{EXTRA}CalibMovingAverage"),
    f"{EXTRA}Percentile": _method("CalibrationMethod.Percentile"),
    f"{EXTRA}PercentileCandidates": _LAYER_WISE,
    f"{EXTRA}LWPMetric": _LAYER_WISE,
    f"{EXTRA}NumBins": _ENTROPY,
    f"{EXTRA}NumQuantizedBins": _ENTROPY,
    f"{EXTRA}SmoothAlpha": _switch("include_sq"),
    f"{EXTRA}ReplaceClip6Relu": _switch("include_cle", default=True),
    f"{FINETUNE}UpdateBias": _algorithm("adaquant"),
    f"{FINETUNE}RegParam": _algorithm("adaround"),
    f"{FINETUNE}BetaRange": _algorithm("adaround"),
    f"{FINETUNE}WarmStart": _algorithm("adaround"),
}
_PREFIXES: Mapping[str, Condition] = {
    f"{EXTRA}CLE": _switch("include_cle", default=True),
    f"{EXTRA}AutoMixprecision.": _switch("include_auto_mp"),
    f"{EXTRA}GPTQParams.": _switch(f"{EXTRA}UseGPTQ"),
    FINETUNE: _switch("include_fast_ft"),
}


def conditions_of(name: str) -> tuple[Condition, ...]:
    """Return the conditions under which an option means something.

    Args:
        name: Its dotted name, such as "extra_options.Percentile".
    """
    own = _CONDITIONS.get(name)
    of_group = tuple(condition for prefix, condition in _PREFIXES.items() if name.startswith(prefix))
    # Of what belongs to finetuning, the algorithm itself exists only where finetuning does.
    return (*of_group, *((own,) if own is not None else ()))
