"""Is the calibration data sufficient, similar to the evaluation data, and of the right colours and pixel values?"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.diagnosis.evidence import Finding, counted
from quantry.diagnosis.pixels import PixelCheck, check_pixels, command_line
from quantry.numerics.histogram import TensorStats
from quantry.observe import Statistics
from quantry.quantization import QuantizationResult

SETTLED = 0.95
"""Share of the range of all samples that fewer samples reach on average, from which on ranges count as settled."""

FEW = 0.85
"""Share that half of the samples reach, below which there are too few: twice as many would widen ranges by a sixth."""

DIFFERENT = 0.7
"""Share of the distributions that both data have in common, below which they look different."""

OUTSIDE = 1e-3
"""Share of evaluation values outside the calibrated ranges, above which the calibration data lack something."""

_NAMED = 5
_SIZES = 24
_TRIMMED_FROM = 8


@dataclass(frozen=True)
class CalibrationCheck:
    """What is known about the calibration data.

    Attributes:
        samples: Number of samples.
        half: Share of the ranges that half of the samples reach on average; None with one sample.
        settled_after: Number of samples after which ranges are settled; None if they still grow.
        growing: The tensors whose ranges grow most with more samples, worst first.
        evaluated: Number of evaluation samples that were compared; 0 if these are the calibration data.
        outside: Share of their values outside the values seen in calibration, mean over tensors; None without them.
        exceeded: The tensors with most values outside, worst first.
        similarity: Share of the distributions that both have in common, mean over tensors; None without them.
        pixels: Colour order and pixel values compared with alternatives; None for other data than images.
        findings: What is wrong, worst first.
    """

    samples: int
    half: float | None
    settled_after: int | None
    growing: tuple[str, ...]
    evaluated: int = 0
    outside: float | None = None
    exceeded: tuple[str, ...] = ()
    similarity: float | None = None
    pixels: PixelCheck | None = None
    findings: tuple[Finding, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join((*self.lines(), *(f"- {finding}" for finding in self.findings)))

    def lines(self) -> Iterator[str]:
        """Yield what was measured, in words."""
        yield f"calibrated on {counted(self.samples, 'sample')}"
        if self.half is not None:
            settled = "they still grow" if self.settled_after is None else f"settled after {self.settled_after}"
            yield f"half of them reach {self.half:.0%} of the ranges; {settled}"
        if self.outside is not None:
            share = f"{100 * self.outside:.2g} %" if self.outside else "none"
            yield (
                f"{share} of the values of {counted(self.evaluated, 'evaluation sample')} lie outside of "
                f"what was seen in calibration; {self.similarity:.0%} of the distributions agree"
            )
        if self.pixels is not None:
            best = self.pixels.alternatives[0] if self.pixels.alternatives else None
            against = "" if best is None else f"; {best.certainty:.2f} with {best.label}"
            choice = self.pixels.current
            yield f"certainty of the outputs: {choice.certainty:.2f} with {choice.label}{against}"
        if not self.findings:
            yield "nothing is wrong with the calibration data"


def check_calibration(result: QuantizationResult) -> CalibrationCheck | None:
    """Check the calibration data of a result.

    Args:
        result: The result of `quantry.quantize`; with ``evaluation_data`` both data are compared.

    Returns:
        None if nothing was calibrated.

    Example:
        >>> print(quantry.check_calibration(result))  # doctest: +SKIP
    """
    statistics, data = result.stages.statistics, result.calibration_data
    if statistics is None or data is None:
        return None
    observed = {name: stats for name, stats in statistics.value.tensors.items() if name in result.plan.activations}
    count = statistics.value.samples
    shares = {name: share for name, stats in observed.items() if (share := _reached(stats)) is not None}
    middle = count // 2
    settled = [n for n in _sizes(count) if n < count and shares and _mean_at(shares, n) >= SETTLED]
    check = CalibrationCheck(
        samples=count,
        half=_mean_at(shares, middle) if shares else None,
        settled_after=min(settled, default=None),
        growing=tuple(sorted(shares, key=lambda name: shares[name].get(middle, 1.0))[:_NAMED]),
        **_compared(observed, result.evaluation_statistics),
        pixels=check_pixels(result.stages.prepared.value.model, data),
    )
    names = tuple(signature.name for signature in data.inputs)
    return _with_findings(check, names)


def _sizes(count: int) -> list[int]:
    """Return numbers of samples to look at: half of them, and a few others, evenly spaced by ratio."""
    return sorted({count // 2, *np.geomspace(1, count, _SIZES).round().astype(int).tolist()} - {0})


def _reached(stats: TensorStats) -> dict[int, float] | None:
    """Return by number of samples the share of the range that they reach on average over all choices of samples."""
    if len(stats.batch_minima) < 2:
        return None
    low, high = (_without_one(ends) for ends in (-stats.batch_minima, stats.batch_maxima))
    width = float(low.max() + high.max())
    if not math.isfinite(width) or width <= 0:
        return None
    return {n: (expected_largest(low, n) + expected_largest(high, n)) / width for n in _sizes(len(low))}


def _without_one(ends: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return one end of each sample's range; one sample with outliers does not count, more samples do not cure it."""
    reach = np.maximum(ends, 0).astype(np.float64)
    return np.minimum(reach, np.sort(reach)[-2]) if len(reach) >= _TRIMMED_FROM else reach


def expected_largest(values: NDArray[np.float64], count_taken: int) -> float:
    """Return the largest of some of the numbers, averaged over all ways to choose them.

    It is the sum of the numbers sorted ascending, each times the probability that it is the largest:
    C(i - 1, k - 1) / C(n, k) for the i-th smallest of n numbers, k of which are taken.

    Args:
        values: The numbers, shape (n,).
        count_taken: How many are chosen, 1 to n.
    """
    ascending, count = np.sort(values), len(values)
    ranks = np.arange(1, count + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(ranks))])  # log n!
    upper_ranks = ranks[count_taken - 1 :]
    ways = logs[upper_ranks - 1] - logs[count_taken - 1] - logs[upper_ranks - count_taken]
    of_all = logs[count] - logs[count_taken] - logs[count - count_taken]
    return float(np.exp(ways - of_all) @ ascending[count_taken - 1 :])


def _mean_at(shares: Mapping[str, Mapping[int, float]], samples: int) -> float:
    return float(np.mean([share[samples] for share in shares.values() if samples in share]))


def _compared(observed: Mapping[str, TensorStats], held_out: Statistics | None) -> dict[str, Any]:
    """Return the fields of `CalibrationCheck` that compare both data."""
    if held_out is None:
        return {}
    outside, common = {}, []
    for name, calibrated in observed.items():
        evaluated = held_out.tensors.get(name)
        if evaluated is None or not calibrated.finite_count or not evaluated.finite_count:
            continue
        spread = evaluated.distribution()
        is_out = (spread.upper > calibrated.maximum) | (spread.lower < calibrated.minimum)
        outside[name] = float(spread.counts[is_out].sum()) / spread.total
        common.append(_overlap(calibrated, evaluated))
    if not outside:
        return {}
    worst = sorted((name for name in outside if outside[name] > 0), key=lambda name: -outside[name])
    return {
        "evaluated": held_out.samples,
        "outside": float(np.mean([*outside.values()])),
        "exceeded": tuple(worst[:_NAMED]),
        "similarity": float(np.mean(common)),
    }


def _overlap(first: TensorStats, second: TensorStats) -> float:
    """Return the mass that two distributions have in common, in bins of sign and power of two."""
    shares = [np.bincount(stats.codes >> 7, stats.counts, 512) / stats.finite_count for stats in (first, second)]
    return float(np.minimum(*shares).sum())


def _with_findings(check: CalibrationCheck, inputs: tuple[str, ...]) -> CalibrationCheck:
    return replace(check, findings=(*_pixel_findings(check, inputs), *_data_findings(check, inputs)))


def _pixel_findings(check: CalibrationCheck, inputs: tuple[str, ...]) -> Iterator[Finding]:
    pixels = check.pixels
    if pixels is None or pixels.better is None:
        return
    options, better = pixels.current.options, pixels.better.options
    # Published means differ in the last digits.
    means = (options.mean, options.mean[::-1])
    same_values = better.scale == options.scale and any(np.allclose(better.mean, mean, rtol=0.02) for mean in means)
    what = "colour order of the images looks" if same_values else "pixel values of the images look"
    yield Finding(
        f"the {what} wrong: the outputs are certain by {pixels.current.certainty:.2f}, and by "
        f"{pixels.better.certainty:.2f} with {pixels.better.label}",
        inputs,
        f"read the images as in training, probably {command_line(better)}",
    )


def _data_findings(check: CalibrationCheck, inputs: tuple[str, ...]) -> Iterator[Finding]:
    if check.half is not None and check.half < FEW:
        yield Finding(
            f"too few samples: half of the {check.samples} reach only {check.half:.0%} of the ranges",
            check.growing,
            f"calibrate on at least {4 * check.samples} samples",
        )
    if check.similarity is not None and check.similarity < DIFFERENT:
        yield Finding(
            f"the evaluation data look different from the calibration data: {check.similarity:.0%} of the "
            "distributions agree",
            inputs,
            "calibrate on samples of the same kind, read with the same options",
        )
    elif check.outside is not None and check.outside > OUTSIDE:
        yield Finding(
            f"{check.outside:.2%} of the values of the evaluation data lie outside of what was seen in calibration",
            check.exceeded,
            "calibrate on more samples, or on samples that resemble the evaluation data",
        )
