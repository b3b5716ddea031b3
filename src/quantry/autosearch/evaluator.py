"""The evaluator protocol and the score it returns."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantry.errors import RecipeError, nearest_spelling
from quantry.evaluate import bootstrap_interval
from quantry.memo import function_digest

Direction = Literal["maximize", "minimize"]

# Characters of a wrong score that a message shows.
_SHOWN = 80


@runtime_checkable
class Evaluator(Protocol):
    """Scores a model file.

    With several workers, each process calls its own copy, one call at a time. All of the following are optional:

    - ``direction``: "maximize" (the default) or "minimize".
    - ``per_sample(model_path, indices) -> array`` with one score per sample, and ``size``, the number of samples. The
      score is the mean over all samples. Both together enable racing and paired comparisons.
    - ``scored(model_path) -> Score``, for a score that is not a mean but has an interval, such as mAP.
    - ``reference_score``: the float model's score if it is known without running it, such as 0 for a distance.
    - ``notes(model_path) -> sequence of text``: what the user should know about the best model; called once at the end.
    - ``prepare(float_model_path)``: called once before the first trial, in the process that starts the workers.
    - ``fingerprint``: text or a number that changes when the evaluation changes; a search in the same output directory
      with another fingerprint starts from scratch. Without it, the evaluator's code is compared.
    """

    def __call__(self, model_path: Path) -> "float | Sequence[float] | Mapping[str, Any]":
        """Return the model's score.

        Args:
            model_path: The ONNX file.

        Returns:
            A finite number; or one number per sample, whose mean is the score; or a mapping from names to such scores.
            Of a mapping, the first score is optimized unless the search names another one; all are recorded.
        """
        ...


@dataclass(frozen=True, eq=False)
class Score:
    """The score of a model.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; None if there are no per-sample scores to estimate it from.
        per_sample: One score per evaluated sample, in the order of evaluation, shape (n,); None if unknown.
        named: All scores by name, if the evaluator returned several.
    """

    value: float
    interval: tuple[float, float] | None = None
    per_sample: NDArray[np.float64] | None = None
    named: Mapping[str, float] = field(default_factory=dict)

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
        metric: Name of the score to optimize, if the evaluator returns several; None is the first.
    """

    evaluator: Callable[[Path], Any]
    direction: Direction
    metric: str | None = None

    @classmethod
    def of(cls, evaluator: Any, metric: str | None = None) -> "EvaluatorAdapter":
        """Check an evaluator; an adapter is returned as it is.

        Args:
            evaluator: The user's evaluator.
            metric: Name of the score to optimize, if the evaluator returns several; None is the first.

        Raises:
            RecipeError: It is not callable, or its direction is invalid.
        """
        if isinstance(evaluator, EvaluatorAdapter):
            return evaluator
        if not callable(evaluator):
            raise RecipeError(f"an evaluator must be callable with a model path, got {type(evaluator).__name__}")
        direction: Any = getattr(evaluator, "direction", "maximize")
        if direction not in ("maximize", "minimize"):
            raise RecipeError(f"an evaluator's direction must be 'maximize' or 'minimize', got {direction!r}")
        return cls(evaluator, direction, metric)

    @property
    def name(self) -> str:
        """Name of the score in tables and reports."""
        given = self.metric or getattr(self.evaluator, "name", None)
        return given if isinstance(given, str) and given else getattr(self.evaluator, "__name__", "score")

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
        chosen = "" if self.metric is None else f" {self.metric}"
        return f"{name} {self.direction} {self.size} {mark}{chosen}"

    def prepare(self, float_path: Path) -> None:
        """Let the evaluator do the work that all workers can share."""
        prepare: Callable[[Path], object] | None = getattr(self.evaluator, "prepare", None)
        if prepare is not None:
            prepare(float_path)

    def notes(self, model_path: Path) -> tuple[str, ...]:
        """Return what the evaluator has to say about a model."""
        notes: Callable[[Path], Sequence[str]] | None = getattr(self.evaluator, "notes", None)
        return () if notes is None else tuple(notes(model_path))

    def float_score(self, float_path: Path) -> Score:
        """Return the float model's score."""
        known = getattr(self.evaluator, "reference_score", None)
        return self.score(float_path) if known is None else Score(float(known))

    def score(self, model_path: Path) -> Score:
        """Evaluate a model on all samples.

        Raises:
            RecipeError: The evaluator returned something other than finite numbers.
        """
        scored: Callable[[Path], Score] | None = getattr(self.evaluator, "scored", None)
        if scored is not None:
            found = scored(model_path)
            _check_finite(found.value)
            # Evaluators of tasks have a score of their own, without the fields that only a search needs.
            return Score(found.value, found.interval, found.per_sample)
        if self.size is not None:
            return Score.of_samples(self.per_sample(model_path, range(self.size)))
        return self._read(self.evaluator(model_path))

    def _read(self, returned: Any) -> Score:
        """Return the score that an evaluator returned in any of its forms."""
        if not isinstance(returned, Mapping):
            if self.metric is not None:
                raise RecipeError(
                    f"an evaluator must return a mapping that holds the score {self.metric!r}, got {returned!r}"
                )
            return _score(returned)
        if not returned:
            raise RecipeError("an evaluator must return at least one score, got an empty mapping")
        scores = {str(name): _score(value, f" as {name!r}") for name, value in returned.items()}
        chosen = next(iter(scores)) if self.metric is None else self.metric
        if chosen not in scores:
            raise RecipeError(
                f"an evaluator must return the score that the search optimizes, {chosen!r}"
                f"{nearest_spelling(chosen, scores)}, got {', '.join(scores)}"
            )
        return replace(scores[chosen], named={name: score.value for name, score in scores.items()})

    def per_sample(self, model_path: Path, indices: Sequence[int]) -> NDArray[np.float64]:
        """Evaluate a model on some samples.

        Returns:
            One score per index, shape (n,).

        Raises:
            RecipeError: The evaluator returned another number of scores, or some that are not finite.
        """
        per_sample: Any = self.evaluator.per_sample  # type: ignore[attr-defined]  # checked by `size`
        scores = np.asarray(per_sample(model_path, list(indices)), dtype=np.float64).reshape(-1)
        finite = int(np.isfinite(scores).sum())
        if len(scores) != len(indices) or finite != len(scores):
            raise RecipeError(
                f"per_sample must return one finite number for each of {len(indices)} samples, got {len(scores)} of "
                f"which {len(scores) - finite} are NaN or infinite; evaluator {self.identity}"
            )
        return scores


def _score(value: Any, where: str = "") -> Score:
    """Return the score of a number, or of one number per sample.

    Args:
        value: What the evaluator returned.
        where: The name of the score, for messages.

    Raises:
        RecipeError: It is neither, or not finite.
    """
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _refused(value, where) from error
    # NumPy reads "0.5" as a number and None as NaN; both are mistakes of the evaluator.
    if value is None or isinstance(value, str | bytes) or numbers.ndim > 1 or (numbers.ndim == 1 and not numbers.size):
        raise _refused(value, where)
    if numbers.ndim == 1 and numbers.size > 1:
        for number in numbers:
            _check_finite(float(number), where)
        return Score.of_samples(numbers)
    _check_finite(float(numbers.reshape(-1)[0]), where)
    return Score(float(numbers.reshape(-1)[0]))


def _refused(value: Any, where: str) -> RecipeError:
    shown = repr(value)
    return RecipeError(
        "an evaluator must return a number, one number per sample, or a mapping of names to these, "
        f"got {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}...'}{where}"
    )


def _check_finite(number: float, where: str = "") -> None:
    if not math.isfinite(number):
        likely = "there may be no sample left to evaluate" if math.isnan(number) else "it may divide by zero"
        raise RecipeError(f"an evaluator must return a number that is finite, got {number}{where}; {likely}")
