"""Ranges that are kept in a file between calls."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from quantry.data.random_data import RandomData
from quantry.errors import DataError, RecipeError
from quantry.graph.qdq import is_pair_operator
from quantry.onnx.translate import Job
from quantry.quantization import QuantizationResult
from quantry.recipe import GivenRange
from quantry.runtime.range_files import StoredRanges, load_ranges, save_ranges
from quantry.scale.given import represented_range, spec_of

_LOG = logging.getLogger("quantry")


def with_stored_ranges(job: Job, path: Path | None, method: str, reader: Any) -> tuple[Job, Any]:
    """Return the job with the ranges of a file, and the data it then needs.

    Args:
        job: The job.
        path: The file; None, or a file that does not exist, changes nothing.
        method: Name of the calibration method.
        reader: The data.

    Raises:
        RecipeError: The ranges were found by another method.
        DataError: There are no ranges and no data.
    """
    stored = load_ranges(path) if path is not None and path.exists() else None
    smooth = job.recipe.equalize.smooth is not None
    if stored is not None and stored.smooth != smooth:
        _LOG.warning("the ranges in %s were found with smooth_quant=%s: calibrating again", path, stored.smooth)
        stored = None
    if stored is None:
        if reader is None:
            raise DataError("calibration_data_reader must be given if no file has the ranges, got None")
        return job, reader
    if stored.method != method:
        raise RecipeError(
            f"calibration_cache_path must hold ranges of the method {method}, got those of {stored.method}; at {path}"
        )
    ranges = tuple(GivenRange(name, (low,), (high,), optional=True) for name, (low, high) in stored.ranges.items())
    scale = replace(job.recipe.scale, given=(*ranges, *job.recipe.scale.given))
    return replace(job, recipe=replace(job.recipe, scale=scale)), RandomData()


def store_ranges(result: QuantizationResult, path: Path, method: str) -> None:
    """Write the ranges of a model's activations to a file."""
    tensors = result.params.tensors
    ranges = {}
    for name in result.plan.activations:
        if name in tensors:
            low, high = represented_range(tensors[name], spec_of(result.plan, name))
            ranges[name] = (float(low), float(high))
    smooth = result.recipe.equalize.smooth is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    save_ranges(path, StoredRanges(method, ranges, smooth))


def is_partly_quantized(model: onnx.ModelProto) -> bool:
    """Whether a model has Q/DQ pairs already."""
    return any(is_pair_operator(node.op_type) for node in model.graph.node)
