"""How close is good: the one table of levels, and how many decibels a difference must have to matter.

Decibels are those of the outputs: 6 dB are one bit of resolution. The limits of the levels follow from some fifty
quantized models with labels (benchmarks/README.md).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantry.evaluate.tasks.float_agreement import Closeness

BIT, HALF_BIT = 6.0, 3.0
"""What one bit of resolution, and half of one, are worth in dB."""

NOTABLE = 0.2
"""Least difference in dB that means something: runs on other samples differ by about as much."""

WORTH_ITS_COST = 0.5
"""Least gain in dB that is worth something at run time, such as layers in float or tensors of 16 bits."""

CERTAIN = 1.0
"""A gain in dB that is no accident if each of a few samples has it, where too few samples are there for a test."""


@dataclass(frozen=True)
class Level:
    """How close a quantized model is to the float model.

    Attributes:
        name: Its name.
        decibels: The least signal-to-noise ratio of the outputs.
        agreement: The least share of decisions that are those of the float model.
        grade: ``good``, ``fair`` or ``bad``, for colours.
        words: What a reader who knows no decibels is told; ``{}`` is the model compared with.
        reason: Why the limits are where they are.
    """

    name: str
    decibels: float
    agreement: float
    grade: str
    words: str
    reason: str


AS_GOOD = Level(
    "as good",
    40.0,
    0.99,
    "good",
    "very close to {}",
    "the error is 1 % of the signal: more precision changes no decision, so nothing is traded for it",
)
VERY_CLOSE = Level(
    "very close",
    30.0,
    0.97,
    "good",
    "very close to {}",
    "the error is 3 % of the signal: all models with labels keep 98 % of the float metric or more",
)
CLOSE = Level(
    "close",
    20.0,
    0.90,
    "good",
    "close to {}",
    "the error is 10 % of the signal: below, classifiers keep 77 to 99 % of the float metric, only labels tell which",
)
DIFFERENT = Level(
    "different",
    BIT,
    0.40,
    "fair",
    "different from {}, measure it on labelled data before use",
    "the error is half of the signal: below, most models lose a tenth of the float metric to everything",
)
FAR = Level("far", -math.inf, 0.0, "bad", "far from {}, expect to lose accuracy", "")

LEVELS = (AS_GOOD, VERY_CLOSE, CLOSE, DIFFERENT, FAR)
"""All levels, best first."""


def level_of(decibels: float, agreement: float | None = None) -> Level:
    """Return the level that both measures reach.

    Args:
        decibels: Signal-to-noise ratio of the outputs.
        agreement: Share of decisions that are those of the float model; None for outputs without decisions.

    Example:
        >>> level_of(32.0).name, level_of(32.0, 0.95).name, level_of(math.nan).name
        ('very close', 'close', 'far')
    """
    share = 1.0 if agreement is None else agreement
    # NaN reaches no limit and is therefore far.
    return next((one for one in LEVELS if decibels >= one.decibels and share >= one.agreement), FAR)


def is_as_good(closeness: "Closeness") -> bool:
    """Return whether a model is so close to the float model that nothing must be traded for accuracy.

    Of class scores only the decisions count, as long as rounding makes no classes equal. A map such as a detector's
    output needs the decibels too: where objects are is decided long before the boxes are precise.

    Args:
        closeness: How close it is.
    """
    agreement, ties = closeness.mean_agreement, closeness.mean_ties
    if agreement is not None and ties is not None:
        return agreement >= AS_GOOD.agreement and ties == 0.0
    return level_of(closeness.mean_decibels, agreement) is AS_GOOD


def is_below(closeness: "Closeness", level: Level) -> bool:
    """Return whether a model does not reach a level, by its decisions, or by its decibels where it makes none.

    Args:
        closeness: How close it is.
        level: The level.
    """
    agreement = closeness.mean_agreement
    return closeness.mean_decibels < level.decibels if agreement is None else agreement < level.agreement


@dataclass(frozen=True)
class Quality:
    """The level of a quantized model, for a reader who knows no decibels.

    Attributes:
        level: ``good``, ``fair`` or ``bad``.
        words: The same in a few words.
        evidence: The numbers that show it, as a sentence.
    """

    level: str
    words: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.words}: {self.evidence}"


def quality(
    decibels: float, agreement: float | None = None, where: str = "", reference: str = "the float model"
) -> Quality:
    """Return how close a quantized model is to the float model.

    Args:
        decibels: Signal-to-noise ratio of the outputs.
        agreement: Share of the samples whose decision is the float model's; None for outputs without decisions.
        where: What both were measured on, such as "20 held-out samples".
        reference: What the model is compared with.

    Example:
        >>> print(quality(32.2, 0.95, "20 samples").evidence)
        the error is 2.5 % of the outputs (32.2 dB), and 95.0 % of the decisions on 20 samples are the same
        >>> print(quality(4.0))
        far from the float model, expect to lose accuracy: the error is 63 % of the outputs (4.0 dB)
    """
    level = level_of(decibels, agreement)
    error = (
        "the outputs are equal"
        if decibels == math.inf
        else f"the error is {_percent(10 ** (-decibels / 20))} of the outputs ({decibels:.1f} dB)"
    )
    measured = f" on {where}" if where else ""
    decisions = "" if agreement is None else f", and {100 * agreement:.1f} % of the decisions{measured} are the same"
    return Quality(level.grade, level.words.format(reference), error + (decisions or measured))


def _percent(share: float) -> str:
    """Return a share with two digits that matter."""
    percent = 100 * share
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"
