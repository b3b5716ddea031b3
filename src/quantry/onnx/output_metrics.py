"""Distances between two arrays under AMD Quark's names, with its formulas.

There are two sets with different definitions: ``calculate_*`` of ``quantization.output_eval``, and ``*_metric`` of the
automatic search. quantry's own metrics are in `quantry.evaluate.metrics`.
"""

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.graph.load import model_source
from quantry.runtime.sessions import run_session, simulation_session

_Array = NDArray[Any]

_LOG = logging.getLogger("quantry")
_PIXEL_RANGE = 255.0
_TINY = 1e-10


def calculate_cos(x: _Array, y: _Array) -> _Array:
    """Return the cosine of the angle between two arrays."""
    a, b = (array.astype(np.float32).ravel() for array in (x, y))
    return np.array(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def calculate_l2_distance(x: _Array, y: _Array) -> _Array:
    """Return the Euclidean length of the difference."""
    return np.array(np.linalg.norm(_difference(x, y)))


def calculate_l1_distance(x: _Array, y: _Array) -> _Array:
    """Return the sum of absolute differences."""
    return np.array(np.abs(_difference(x, y)).sum())


def calculate_ssim(base_input: _Array, ref_input: _Array) -> _Array:
    """Return the structural similarity with one window over the whole array, for values of 0 to 255."""
    return np.array(ssim_metric(base_input.astype(np.float32), ref_input.astype(np.float32)), np.float32)


def calculate_psnr(reference_image: _Array, noisy_image: _Array) -> _Array:
    """Return the peak signal-to-noise ratio in dB; the peak is the largest value of the reference."""
    error = float(np.mean(np.square(_difference(reference_image, noisy_image)))) or _TINY
    peak = float(reference_image.max())
    return np.array(20 * np.log10(peak if peak > 0 else _TINY) - 10 * np.log10(error))


def _difference(x: _Array, y: _Array) -> _Array:
    return np.subtract(x.astype(np.float32), y.astype(np.float32))


def l2_metric(base_input: _Array, ref_input: _Array) -> float:
    """Return the mean of squared differences."""
    return float(np.mean(np.square(base_input - ref_input)))


def l1_metric(base_input: _Array, ref_input: _Array) -> float:
    """Return the mean of absolute differences."""
    return float(np.mean(np.abs(base_input - ref_input)))


def cos_metric(base_input: _Array, ref_input: _Array) -> float:
    """Return the cosine similarity in the range 0 to 1; 0 if an array is zero."""
    a, b = base_input.ravel(), ref_input.ravel()
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return 0.5 + 0.5 * float(a @ b) / lengths if lengths else 0.0


def psnr_metric(base_input: _Array, ref_input: _Array) -> float:
    """Return the peak signal-to-noise ratio in dB for values of 0 to 255; at most 100."""
    error = l2_metric(base_input, ref_input)
    return 100.0 if error < _TINY else float(20 * np.log10(_PIXEL_RANGE / np.sqrt(error)))


def ssim_metric(base_input: _Array, ref_input: _Array) -> float:
    """Return the structural similarity with one window over the whole array, for values of 0 to 255.

    The deviations of both arrays stand where the definition has their covariance, as in AMD Quark.
    """
    means = float(base_input.mean()), float(ref_input.mean())
    variances = float(base_input.var()), float(ref_input.var())
    low, high = (0.01 * _PIXEL_RANGE) ** 2, (0.03 * _PIXEL_RANGE) ** 2
    luminance = (2 * means[0] * means[1] + low) / (means[0] ** 2 + means[1] ** 2 + low)
    contrast = (2 * math.sqrt(variances[0] * variances[1]) + high) / (variances[0] + variances[1] + high)
    return luminance * contrast


METRICS = {"L2": l2_metric, "L1": l1_metric, "cos": cos_metric, "psnr": psnr_metric, "ssim": ssim_metric}
"""The metrics of the automatic search by their names in its configuration."""


def eval_metrics(
    float_model: Any,
    quant_model: Any,
    eval_data_reader: Any,
    execution_providers: list[str] | None = None,
    use_external_data_format: bool = False,
) -> None:
    """Log how far the first outputs of two models are apart: cosine and Euclidean distance.

    Args:
        float_model: A path or an ``onnx.ModelProto``.
        quant_model: A path or an ``onnx.ModelProto``.
        eval_data_reader: Samples until its ``get_next`` returns None.
        execution_providers: Not needed: the models are simulated on the CPU.
        use_external_data_format: Not needed: models of any size are read.
    """
    del execution_providers, use_external_data_format
    sessions = [simulation_session(model_source(model).load()) for model in (float_model, quant_model)]
    cosines, lengths = [], []
    while sample := eval_data_reader.get_next():
        ours, theirs = (next(iter(run_session(session, dict(sample)).values())) for session in sessions)
        cosines.append(float(calculate_cos(ours, theirs)))
        lengths.append(float(calculate_l2_distance(ours, theirs)))
    _LOG.info("cosine similarity of the first output: mean %.6g, least %.6g", np.mean(cosines), np.min(cosines))
    _LOG.info("Euclidean distance of the first output: mean %.6g, largest %.6g", np.mean(lengths), np.max(lengths))
