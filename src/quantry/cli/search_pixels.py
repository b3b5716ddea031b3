"""Pixel values for a search without pixel options: labels show which ones the model was trained on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantry.cli.frame import current_output
from quantry.cli.image_arguments import guessed_pixels
from quantry.cli.search_job import SearchJob

if TYPE_CHECKING:
    from quantry.data.images import ImageOptions

# Labelled images that both ways are scored on. A wrong one costs most of the accuracy, which shows in far fewer.
_COMPARED = 64

# Usual pixel values that are scored: outputs alone do not always tell the two orders of colours apart.
_TRIED = 4

# A score without samples, such as mAP, must be better by this share and by this much.
_BETTER_SHARE, _LEAST_GAIN = 1.2, 0.01


def with_proven_pixels(job: SearchJob) -> SearchJob:
    """Return a search with the pixel values that the float model's own score asks for, and say so.

    Without pixel options, pixels are 0..255. Where the model's outputs suggest other values and labels confirm them,
    a search on 0..255 would only compare useless models with each other.

    Args:
        job: A search for which the user gave no image options.
    """
    guess = guessed_pixels(job.model, job.data or job.evaluation_data)
    if guess is None:
        return job
    proven = _proven(job, guess.alternatives[:_TRIED]) if job.labelled_data.is_labelled else None
    if proven is not None:
        return proven
    for note in guess.warnings:
        current_output().warn(note)
    return job


def _proven(job: SearchJob, likely: "Sequence[ImageOptions]") -> SearchJob | None:
    """Return the search with those pixel values that have the best score; None if 0..255 are as good."""
    if not likely:
        return None
    from quantry.diagnosis import command_line

    reference = _float_scores(job)
    candidates = [replace(job, images=_pixel_values(options)) for options in likely]
    scores = [_float_scores(candidate) for candidate in candidates]
    # The first of equal ones, which the model's outputs speak for.
    best = max(range(len(candidates)), key=lambda index: (scores[index].mean(), -index))
    if not _is_better(scores[best], reference):
        return None
    on = f" on the same {len(reference)} labelled images" if len(reference) > 1 else ""
    current_output().warn(
        f"no pixel option was given, so {command_line(likely[best])} is used: with it the float model has "
        f"{job.metric_name} {scores[best].mean():.4f}, and {reference.mean():.4f} with pixels 0..255{on}"
    )
    return candidates[best]


def _pixel_values(options: "ImageOptions") -> dict[str, object]:
    """Return the options of colours and pixel values; how images are resized is another question."""
    values: dict[str, object] = {"color": options.color, "scale": options.scale}
    if any(options.mean):
        values["mean"] = options.mean
    if any(value != 1 for value in options.std):
        values["std"] = options.std
    return values


def _float_scores(job: SearchJob) -> NDArray[np.float64]:
    """Return the float model's score of each of some labelled images, or a single score."""
    _, evaluator, _ = job.labelled_data.parts()
    if not hasattr(evaluator, "per_sample"):
        return np.array([float(evaluator(job.model))])
    indices = np.unique(np.linspace(0, evaluator.size - 1, min(evaluator.size, _COMPARED)).astype(int))
    return np.asarray(evaluator.per_sample(job.model, indices.tolist()), np.float64)


def _is_better(scores: NDArray[np.float64], reference: NDArray[np.float64]) -> bool:
    from quantry.evaluate.paired import is_better

    if len(scores) > 1:
        return is_better(scores, reference)
    return float(scores[0]) >= max(_BETTER_SHARE * float(reference[0]), float(reference[0]) + _LEAST_GAIN)
