"""Mean average precision of the demo detector, or of any model with the same output."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.demo.detections import decode
from quantry.demo.scenes import CLASS_NAMES, Scene, calibration_scenes, evaluation_scenes
from quantry.evaluate.arithmetic import arithmetic_in_force
from quantry.evaluate.tasks import (
    AveragePrecision,
    ImageMatches,
    TaskScore,
    match_image,
    precision_intervals,
    summarize,
)

INPUT_NAME = "images"

Run = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Maps images, float32 [1, 3, IMAGE_SIZE, IMAGE_SIZE] in 0..255, to the detector's output."""


def image_tensor(scene: Scene) -> NDArray[np.float32]:
    """Return the scene's image as the detector's input: RGB, 0..255, float32 [1, 3, IMAGE_SIZE, IMAGE_SIZE]."""
    return np.ascontiguousarray(scene.image.transpose(2, 0, 1)[None], dtype=np.float32)


def calibration_inputs(count: int) -> list[dict[str, NDArray[np.float32]]]:
    """Return ``count`` inputs for calibration, each ``{"images": float32 [1, 3, IMAGE_SIZE, IMAGE_SIZE]}``."""
    return [{INPUT_NAME: image_tensor(scene)} for scene in calibration_scenes(count)]


def match_scenes(run: Run, scenes: Iterable[Scene]) -> list[ImageMatches]:
    """Run the detector on each scene and match its detections; a bootstrap over images resamples these.

    Args:
        run: The detector.
        scenes: Labelled images, read one at a time.
    """
    return [
        match_image(decode(run(image_tensor(scene)))[0], scene.boxes, scene.labels, len(CLASS_NAMES))
        for scene in scenes
    ]


def mean_average_precision(run: Run, scenes: Iterable[Scene]) -> AveragePrecision:
    """Return the COCO average precision of a detector over scenes."""
    return summarize(match_scenes(run, scenes))


def evaluate(run: Run, count: int = 200) -> dict[str, float]:
    """Return the detector's mean average precision on the first ``count`` evaluation scenes.

    Args:
        run: The detector: images, float32 [1, 3, IMAGE_SIZE, IMAGE_SIZE] in 0..255, to its output.
        count: Number of scenes, 1 or more.

    Returns:
        ``map`` over overlaps 0.5 to 0.95, and ``map50``.

    Example:
        >>> import numpy as np
        >>> evaluate(lambda images: np.zeros((len(images), 1344, 13)), count=2)
        {'map': 0.0, 'map50': 0.0}
    """
    score = mean_average_precision(run, evaluation_scenes(count))
    return {"map": score.map, "map50": score.map50}


@dataclass(frozen=True)
class ScenePrecision:
    """Evaluator for searches on the built-in detector: mean average precision on evaluation scenes.

    Attributes:
        scenes: Number of scenes.
        threads: Threads inside one operator; None uses the default of the process.

    Example:
        >>> from quantry import demo
        >>> round(demo.ScenePrecision(scenes=4)(demo.model_path()), 2)
        0.72
    """

    scenes: int = 200
    threads: int | None = None
    name: ClassVar[str] = "mAP"
    direction: ClassVar[str] = "maximize"

    @property
    def fingerprint(self) -> str:
        """What a score depends on, except the model."""
        return f"embedded scenes {self.scenes}"

    def __call__(self, model_path: str | Path) -> float:
        """Return a model's mean average precision."""
        return summarize(self._matches(model_path)).map

    def scored(self, model_path: str | Path) -> TaskScore:
        """Return a model's mean average precision with its interval over scenes."""
        matches = self._matches(model_path)
        return TaskScore(summarize(matches).map, precision_intervals(matches)[0])

    def _matches(self, model_path: str | Path) -> list[ImageMatches]:
        session = arithmetic_in_force().open(model_path, self.threads)

        def run(images: NDArray[np.float32]) -> NDArray[np.floating]:
            return np.asarray(session.run(None, {INPUT_NAME: images})[0])

        return match_scenes(run, _scenes(self.scenes))


# Drawing a scene takes as long as running the detector on it, and a search uses the same scenes in every trial.
@functools.lru_cache(maxsize=2)
def _scenes(count: int) -> tuple[Scene, ...]:
    return tuple(evaluation_scenes(count))
