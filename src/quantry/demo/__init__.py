"""The built-in demo: a small real detector, and a generator of the labelled images it was trained on.

The model is ``detector.onnx``: input ``images``, RGB in 0..255, float32 [batch, 3, 128, 128]; output ``detections``,
float32 [batch, 1344, 13], which ``decode`` explains. ``examples/train_detector.py`` made it.
"""

from pathlib import Path

from quantry.demo.detections import decode
from quantry.demo.evaluation import (
    INPUT_NAME,
    ScenePrecision,
    calibration_inputs,
    evaluate,
    image_tensor,
    match_scenes,
    mean_average_precision,
)
from quantry.demo.scenes import (
    CLASS_NAMES,
    IMAGE_SIZE,
    Scene,
    calibration_scenes,
    evaluation_scenes,
    scene,
    training_scenes,
)
from quantry.evaluate.tasks import AveragePrecision, Detections, ImageMatches, match_image, summarize

__all__ = [
    "CLASS_NAMES",
    "IMAGE_SIZE",
    "INPUT_NAME",
    "MODEL_PATH",
    "AveragePrecision",
    "Detections",
    "ImageMatches",
    "Scene",
    "ScenePrecision",
    "calibration_inputs",
    "calibration_scenes",
    "decode",
    "evaluate",
    "evaluation_scenes",
    "image_tensor",
    "match_image",
    "match_scenes",
    "mean_average_precision",
    "model_path",
    "scene",
    "summarize",
    "training_scenes",
]

MODEL_PATH: Path = Path(__file__).with_name("detector.onnx")


def model_path() -> Path:
    """Return the path of the float detector inside the installed package."""
    return MODEL_PATH
