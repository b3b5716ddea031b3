"""The models that quality is measured on, in the order of the table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from benchmarks.accuracy.classification import CifarSuite, ImageNetSuite
from benchmarks.accuracy.detection import DetectionSuite, FastestDetSuite
from benchmarks.accuracy.score import Run, Score
from benchmarks.accuracy.sentences import SentenceSuite
from benchmarks.workloads.sample_folder import Sample


class Suite(Protocol):
    """A float model with calibration samples and a metric on held-out data.

    Methods load the scripts of the shared data, which change ``sys.path``: call them in a separate process.
    """

    @property
    def name(self) -> str:
        """Folder of the model in the shared data."""

    @property
    def metric(self) -> str:
        """Name of the metric; larger is better."""

    def model(self) -> Path:
        """Return the float model."""

    def calibration(self) -> Iterator[Sample]:
        """Yield the calibration samples."""

    def more_samples(self) -> Iterator[Sample]:
        """Yield held-out samples for timing and evaluation; never to calibrate a model whose quality is reported."""

    def score(self, model: Path, limit: int | None, run: Run | None = None) -> Score:
        """Evaluate a model on the first ``limit`` held-out samples, or on all; ``run`` replaces onnxruntime."""


SUITES: tuple[Suite, ...] = (
    DetectionSuite("yolox_nano", "coco_val"),
    DetectionSuite("yolox_tiny_click", "yolox_tiny_click"),
    ImageNetSuite("mobilenetv2_035", "norm_torch"),
    ImageNetSuite("efficientnet_lite0", "norm_pm1", weights="efficientnet_lite0_fp16.npz"),
    CifarSuite(),
    SentenceSuite(),
    ImageNetSuite("squeezenet11", "prep", crop=227),
    ImageNetSuite("mobilenetv1_025", None),
    FastestDetSuite("fastestdet", "coco_val"),
)


def find_suite(name: str) -> Suite:
    """Return the suite of that name."""
    return next(suite for suite in SUITES if suite.name == name)
