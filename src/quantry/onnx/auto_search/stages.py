"""The two stages of a two-stage search."""

from collections.abc import Mapping, Sequence
from typing import Any

from quantry.onnx.auto_search.configuration import Configuration
from quantry.onnx.config import QuantizationConfig

_FINETUNE = "FastFinetune"
_SWITCH = "include_fast_ft"


def has_both_parts(configurations: Sequence[Mapping[str, Any]], base: QuantizationConfig) -> bool:
    """Say whether there is something to search in calibration and something in finetuning.

    Finetuning has to be switched on somewhere, in the space or in the starting configuration.
    """
    tuned = [entry for entry in configurations if _settings(entry) and entry.get(_SWITCH, base.include_fast_ft)]
    calibration = [entry for entry in configurations if _calibration(entry)]
    return bool(tuned) and bool(calibration)


def without_finetuning(configurations: Sequence[Mapping[str, Any]]) -> list[Configuration]:
    """Return the configurations of the first stage: finetuning off, each one once."""
    return _distinct({**_calibration(entry), _SWITCH: False} for entry in configurations)


def finetune_stage(chosen: Mapping[str, Any], configurations: Sequence[Mapping[str, Any]]) -> list[Configuration]:
    """Return the configurations of the second stage: the best of the first with every setting of finetuning, once."""
    options = chosen.get("extra_options") or {}
    return _distinct(
        {**chosen, _SWITCH: True, "extra_options": {**options, _FINETUNE: settings}}
        for settings in map(_settings, configurations)
        if settings
    )


def _settings(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (configuration.get("extra_options") or {}).get(_FINETUNE) or {}
    return found if isinstance(found, Mapping) else {}


def _calibration(configuration: Mapping[str, Any]) -> Configuration:
    """Return a configuration without anything of finetuning."""
    rest = {name: value for name, value in configuration.items() if name not in (_SWITCH, "extra_options")}
    options = {name: value for name, value in (configuration.get("extra_options") or {}).items() if name != _FINETUNE}
    return rest | ({"extra_options": options} if options else {})


def _distinct(configurations: Any) -> list[Configuration]:
    return list({repr(configuration): configuration for configuration in configurations}.values())
