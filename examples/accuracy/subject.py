"""What the scripts of this folder quantize: the embedded detector, or a model and images of the user's."""

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from quantry import demo
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.evaluate import find_metric
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.onnx import Config, ModelQuantizer, QuantizationConfig

Sample = dict[str, np.ndarray]


def numbers(text: str) -> tuple[float, ...]:
    """Read ``0.485,0.456,0.406``."""
    return tuple(float(part) for part in text.split(","))


class Reader:
    """Samples in the protocol of onnxruntime."""

    def __init__(self, samples: list[Sample]) -> None:
        self.rest = iter(samples)

    def get_next(self) -> Sample | None:
        """Return the next sample, or None at the end."""
        return next(self.rest, None)


class Subject:
    """A model, samples to calibrate on, and a score that is larger where a quantized model is better."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.output: Path = arguments.output
        self.embedded = arguments.model is None
        self.model: Path = arguments.model or demo.model_path()
        self.scenes: int = arguments.scenes
        self.metric = "mean average precision" if self.embedded else "SQNR in dB"
        if self.embedded:
            self.samples = demo.calibration_inputs(arguments.samples)
            self.others: list[Sample] = []
            return
        options = ImageOptions(mean=arguments.mean, std=arguments.std, scale=arguments.pixel_scale)
        inputs = input_signatures(model_source(self.model).load())
        everything = list(calibration_data(arguments.images, inputs, options))
        self.samples = everything[: arguments.samples]
        self.others = everything[arguments.samples :][: arguments.scenes] or self.samples

    @classmethod
    def of_command_line(cls, description: str | None, **more: Any) -> tuple["Subject", argparse.Namespace]:
        """Read the arguments that all scripts have, and those of one script.

        Args:
            description: What the script does.
            more: Further arguments by name, with their defaults.
        """
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--model", type=Path, help="float ONNX model; default: the embedded detector")
        parser.add_argument("--images", type=Path, help="folder of images for a model of your own")
        parser.add_argument("--samples", type=int, default=32, help="samples to calibrate on")
        parser.add_argument("--scenes", type=int, default=60, help="scenes or images to evaluate on")
        parser.add_argument("--pixel-scale", type=float, default=1.0, help="factor on pixel values 0..255")
        parser.add_argument("--mean", type=numbers, default=(0.0, 0.0, 0.0), help="per-channel mean after that")
        parser.add_argument("--std", type=numbers, default=(1.0, 1.0, 1.0), help="per-channel deviation after that")
        parser.add_argument("--output", type=Path, default=Path("accuracy-out"), help="folder of the quantized models")
        for name, default in more.items():
            parser.add_argument(f"--{name}", type=type(default), default=default)
        arguments = parser.parse_args()
        if arguments.model is not None and arguments.images is None:
            parser.error("--model goes with --images, a folder of images to calibrate and evaluate on")
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        return cls(arguments), arguments

    def quantized(self, name: str, config: QuantizationConfig) -> Path:
        """Quantize as a configuration says, and return where the model is."""
        path = self.output / f"{name}.onnx"
        quantizer = ModelQuantizer(Config(global_quant_config=config))
        quantizer.quantize_model(str(self.model), str(path), Reader(self.samples))
        return path

    def score(self, path: Path) -> float:
        """Return the score of a model."""
        if self.embedded:
            session = _session(path)
            return demo.evaluate(lambda image: session.run(None, {demo.INPUT_NAME: image})[0], self.scenes)["map"]
        metric = find_metric("sqnr")
        pairs = zip(self._outputs(self.model), self._outputs(path), strict=True)
        return float(np.mean([metric.score(reference, result) for reference, result in pairs]))

    def show(self, title: str, models: dict[str, Path]) -> dict[str, float]:
        """Print a table of scores, and return them."""
        rows = {"float": self.model, **models} if self.embedded else models
        print(f"{title:<36}{self.metric:>24}")
        scores = {name: self.score(path) for name, path in rows.items()}
        for name, score in scores.items():
            print(f"{name:<36}{score:>24.4f}")
        return scores

    def _outputs(self, path: Path) -> Iterator[np.ndarray]:
        session = _session(path)
        return (session.run(None, sample)[0] for sample in self.others)


def _session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
