"""What judges a model, and what it said."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantry.errors import RecipeError
from quantry.evaluate import bootstrap_interval
from quantry.memo import function_digest

Direction = Literal["maximize", "minimize"]


@runtime_checkable
class Evaluator(Protocol):
    """Judges a model file.

    Called in worker processes where there are several, one call at a time in each. Beyond the call it may have:

    - ``direction``: "maximize" (what a plain function gets) or "minimize".
    - ``per_sample(model_path, indices) -> array`` of one score for each of these samples, and ``size``, how many there
      are. The mean of all is the score. Both together enable racing and paired comparisons.
    - ``scored(model_path) -> Score``, for a score that is no mean but has an interval, such as mean average precision.
    - ``reference_score``: the float model's score where it is known without running it, such as 0 for a distance.
    - ``prepare(float_model_path)``: called once before the first trial, in the process that starts the workers.
    - ``fingerprint``: a text or number that changes when the evaluation does; a search of the same output directory
      with another fingerprint begins anew. Without it the code of the evaluator takes its place.
    """

    def __call__(self, model_path: Path) -> float:
        """Return the model's score.

        Args:
            model_path: The ONNX file.
        """
        ...


@dataclass(frozen=True, eq=False)
class Score:
    """What an evaluator said of a model.

    Attributes:
        value: The score.
        interval: 95 % confidence interval, or None where the evaluator gives no samples to estimate it from.
        per_sample: One score for each sample that was evaluated, the first of the data in order; None where unknown.
    """

    value: float
    interval: tuple[float, float] | None = None
    per_sample: NDArray[np.float64] | None = None

    @classmethod
    def of_samples(cls, per_sample: NDArray[Any]) -> "Score":
        """Return the mean with its bootstrap interval."""
        scores = np.asarray(per_sample, dtype=np.float64)
        return cls(float(scores.mean()), bootstrap_interval(scores), scores)


@dataclass(frozen=True)
class Judge:
    """An evaluator with everything it may leave out filled in.

    Attributes:
        evaluator: What the user gave.
        direction: Which way is better.
    """

    evaluator: Callable[[Path], float]
    direction: Direction

    @classmethod
    def of(cls, evaluator: Any) -> "Judge":
        """Check an evaluator.

        Raises:
            RecipeError: It cannot be called, or its direction is none.
        """
        if not callable(evaluator):
            raise RecipeError(f"an evaluator must be callable with a model's path, got {type(evaluator).__name__}")
        direction: Any = getattr(evaluator, "direction", "maximize")
        if direction not in ("maximize", "minimize"):
            raise RecipeError(f"an evaluator's direction must be 'maximize' or 'minimize', got {direction!r}")
        return cls(evaluator, direction)

    @property
    def sign(self) -> float:
        """1 where more is better, else -1; times a score, more is better."""
        return 1.0 if self.direction == "maximize" else -1.0

    @property
    def size(self) -> int | None:
        """How many samples can be scored one by one; None where that is not offered."""
        size = getattr(self.evaluator, "size", None)
        return size if hasattr(self.evaluator, "per_sample") and isinstance(size, int) and size > 0 else None

    @property
    def identity(self) -> str:
        """What tells this evaluation from others: its fingerprint, or else what its code does."""
        given = getattr(self.evaluator, "fingerprint", None)
        told = given() if callable(given) else given
        named = getattr(self.evaluator, "__qualname__", type(self.evaluator).__qualname__)
        return f"{named} {self.direction} {self.size} {function_digest(self.evaluator) if told is None else told}"

    def prepare(self, float_path: Path) -> None:
        """Let the evaluator do what all workers can share."""
        prepare: Callable[[Path], object] | None = getattr(self.evaluator, "prepare", None)
        if prepare is not None:
            prepare(float_path)

    def score(self, model_path: Path) -> Score:
        """Evaluate a model on everything.

        Raises:
            RecipeError: What the evaluator returned is no number.
        """
        scored: Callable[[Path], Score] | None = getattr(self.evaluator, "scored", None)
        if scored is not None:
            return scored(model_path)
        if self.size is not None:
            return Score.of_samples(self.samples(model_path, range(self.size)))
        return Score(_number(self.evaluator(model_path)))

    def samples(self, model_path: Path, indices: Sequence[int]) -> NDArray[np.float64]:
        """Evaluate a model on some samples.

        Returns:
            One score for each index.

        Raises:
            RecipeError: The evaluator returned another number of scores, or a NaN.
        """
        per_sample: Any = self.evaluator.per_sample  # type: ignore[attr-defined]  # checked by `size`
        scores = np.asarray(per_sample(model_path, list(indices)), dtype=np.float64).reshape(-1)
        if len(scores) != len(indices) or np.isnan(scores).any():
            raise RecipeError(
                f"per_sample must return one number for each of {len(indices)} samples, got {len(scores)} of which "
                f"{int(np.isnan(scores).sum())} are NaN; evaluator {self.identity}"
            )
        return scores


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"an evaluator must return a number, got {value!r}") from error
    if math.isnan(number):
        raise RecipeError("an evaluator must return a number, got NaN; there may be no sample left to evaluate")
    return number
