"""Speed on the target, as a limit of what may stay in float: measured before tuning, which moves no times."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from quantry.data.calibration_data import CalibrationData
from quantry.facts.operators import LINEAR
from quantry.graph.load import ModelSource
from quantry.memo import Memo, Store
from quantry.quantization import QuantizationResult
from quantry.targets import LEAST_SPEEDUP, Target, backend_of
from quantry.targets.slow_int8_nodes import SpeedOverFloat, slow_int8_nodes, speed_over_float

# Pairs of timed runs: as many as fit into a second and a half, within these limits.
_TIMED_RUNS = (10, 60)
_TIMED_MILLISECONDS = 750.0
# Milliseconds of the float model. Of a shorter one only noise would be measured; a longer one would take minutes.
_SHORTEST, _LONGEST = 0.2, 5000.0


@dataclass
class SpeedCheck:
    """Measures how fast models are on a target compared with the float model.

    Attributes:
        source: The user's model.
        target: A target whose backend measures times here.
        data: Samples; the first one is timed.
        memo: Stores times, so that the same measurements lead to the same model.
    """

    source: ModelSource
    target: Target
    data: CalibrationData
    memo: Memo
    _runs: int = field(default=0, init=False)

    @classmethod
    def of(cls, source: ModelSource, target: Target, data: CalibrationData, store: Store) -> "SpeedCheck | None":
        """Return the check; None if the target's times cannot be measured here."""
        backend = backend_of(target)
        if backend is None or backend.emulated or backend.version() is None:
            return None
        return cls(source, target, data, Memo(store))

    @property
    def name(self) -> str:
        """Name of the target."""
        return self.target.name

    def slow_nodes(self, result: QuantizationResult) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what to leave in float: all slow nodes, else all but products, whose neighbours then need conversions.

        Args:
            result: A model with all its nodes quantized.
        """
        stages = result.stages
        slow = self.memo.run(slow_int8_nodes, stages.prepared, stages.quantized, self._feeds, self._name).value
        if not _SHORTEST <= slow.milliseconds <= _LONGEST:
            return
        self._runs = int(np.clip(_TIMED_MILLISECONDS / slow.milliseconds, *_TIMED_RUNS))
        kinds = dict(zip(slow.names, slow.operators, strict=True))
        cheap = tuple(name for name in slow.names if kinds[name] not in LINEAR)
        for names in dict.fromkeys(names for names in (slow.names, cheap) if names):
            yield names, ", ".join(dict.fromkeys(kinds[name] for name in names))

    def is_faster(self, result: QuantizationResult, base: QuantizationResult) -> bool:
        """Return whether a model is faster than another one, also in most of the single runs.

        Args:
            result: The model.
            base: The other one.
        """
        base_speed, speed = self._measured(base), self._measured(result)
        return speed.value >= LEAST_SPEEDUP * base_speed.value and speed.least >= base_speed.value

    def refusal(self, result: QuantizationResult, base: QuantizationResult) -> str:
        """Return why a model is too slow: slower than float, where another one is not; empty if it is not.

        Args:
            result: The model.
            base: The other one.
        """
        if not self._runs or self._measured(base).because:
            return ""  # too short or too long to be timed, or slower than float in any case
        return self._measured(result).because

    def slow_because(self, result: QuantizationResult) -> str | None:
        """Return that a model is not faster than float, and which nodes cost it; None if it is, or was not timed.

        Args:
            result: The model.
        """
        return (self._measured(result).because or None) if self._runs else None

    def _measured(self, result: QuantizationResult) -> SpeedOverFloat:
        quantized = result.stages.quantized
        return self.memo.run(speed_over_float, self.source, quantized, self._feeds, self._name, self._runs).value

    @property
    def _name(self) -> str:
        return self.target.file or self.target.name

    @cached_property
    def _feeds(self) -> dict[str, object]:
        return dict(next(iter(self.data)))
