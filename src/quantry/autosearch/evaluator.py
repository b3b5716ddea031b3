"""The evaluator protocol and the score it returns."""

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
    """Scores a model file.

    With several workers, each process calls its own copy, one call at a time. All of the following are optional:

    - ``direction``: "maximize" (the default) or "minimize".
    - ``per_sample(model_path, indices) -> array`` with one score per sample, and ``size``, the number of samples. The
      score is the mean over all samples. Both together enable racing and paired comparisons.
    - ``scored(model_path) -> Score``, for a score that is not a mean but has an interval, such as mAP.
    - ``reference_score``: the float model's score if it is known without running it, such as 0 for a distance.
    - ``prepare(float_model_path)``: called once before the first trial, in the process that starts the workers.
    - ``fingerprint``: text or a number that changes when the evaluation changes; a search in the same output directory
      with another fingerprint starts from scratch. Without it, the evaluator's code is compared.
    """

    def __call__(self, model_path: Path) -> float:
        """Return the model's score.

        Args:
            model_path: The ONNX file.
        """
        ...


@dataclass(frozen=True, eq=False)
class Score:
    """The score of a model.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; None if there are no per-sample scores to estimate it from.
        per_sample: One score per evaluated sample, in the order of evaluation, shape (n,); None if unknown.
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
class EvaluatorAdapter:
    """An evaluator with defaults for every optional part of the protocol.

    Attributes:
        evaluator: The user's evaluator.
        direction: Whether its score is maximized or minimized.
    """

    evaluator: Callable[[Path], float]
    direction: Direction

    @classmethod
    def of(cls, evaluator: Any) -> "EvaluatorAdapter":
        """Check an evaluator.

        Raises:
            RecipeError: It is not callable, or its direction is invalid.
        """
        if not callable(evaluator):
            raise RecipeError(f"an evaluator must be callable with a model path, got {type(evaluator).__name__}")
        direction: Any = getattr(evaluator, "direction", "maximize")
        if direction not in ("maximize", "minimize"):
            raise RecipeError(f"an evaluator's direction must be 'maximize' or 'minimize', got {direction!r}")
        return cls(evaluator, direction)

    @property
    def size(self) -> int | None:
        """Number of samples that can be scored one by one; None if the evaluator has no ``per_sample``."""
        size = getattr(self.evaluator, "size", None)
        return size if hasattr(self.evaluator, "per_sample") and isinstance(size, int) and size > 0 else None

    @property
    def identity(self) -> str:
        """Text that differs between evaluations: the fingerprint, or a digest of the code."""
        given = getattr(self.evaluator, "fingerprint", None)
        fingerprint = given() if callable(given) else given
        name = getattr(self.evaluator, "__qualname__", type(self.evaluator).__qualname__)
        mark = function_digest(self.evaluator) if fingerprint is None else fingerprint
        return f"{name} {self.direction} {self.size} {mark}"

    def prepare(self, float_path: Path) -> None:
        """Let the evaluator do the work that all workers can share."""
        prepare: Callable[[Path], object] | None = getattr(self.evaluator, "prepare", None)
        if prepare is not None:
            prepare(float_path)

    def float_score(self, float_path: Path) -> Score:
        """Return the float model's score."""
        known = getattr(self.evaluator, "reference_score", None)
        return self.score(float_path) if known is None else Score(float(known))

    def score(self, model_path: Path) -> Score:
        """Evaluate a model on all samples.

        Raises:
            RecipeError: The evaluator returned something other than a number.
        """
        scored: Callable[[Path], Score] | None = getattr(self.evaluator, "scored", None)
        if scored is not None:
            return scored(model_path)
        if self.size is not None:
            return Score.of_samples(self.per_sample(model_path, range(self.size)))
        return Score(_number(self.evaluator(model_path)))

    def per_sample(self, model_path: Path, indices: Sequence[int]) -> NDArray[np.float64]:
        """Evaluate a model on some samples.

        Returns:
            One score per index, shape (n,).

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
