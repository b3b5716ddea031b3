"""Post-training quantization to uint8 activations and int8 weights in Q/DQ pairs; run prepare.py first."""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from PIL import Image

from quantry import demo, vai_q_onnx

FLOAT, QUANTIZED = Path("models/float.infer.onnx"), Path("models/quantized.U8S8.onnx")
IMAGES, INPUTS = Path("calibration_images"), Path("models/inputs.json")


class ImageReader(CalibrationDataReader):
    """Calibration images one by one, in the layout that the model takes."""

    def __init__(self, folder: Path, model: Path) -> None:
        taken = session(model).get_inputs()[0]
        self.name, (_, _, self.height, self.width) = taken.name, taken.shape
        settings = json.loads(INPUTS.read_text())
        self.scale, self.mean, self.std = (np.array(settings[key], np.float32) for key in ("scale", "mean", "std"))
        self.paths = sorted(folder.iterdir())
        self.rest = iter(self.paths)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next image as a batch of one, or None at the end."""
        path = next(self.rest, None)
        return None if path is None else {self.name: self.input_of(path)}

    def input_of(self, path: Path) -> np.ndarray:
        """Return an image as float32 [1, 3, height, width]."""
        picture = Image.open(path).convert("RGB").resize((self.width, self.height), Image.Resampling.BILINEAR)
        values = (np.asarray(picture, np.float32) * self.scale - self.mean) / self.std
        return values.transpose(2, 0, 1)[None]


def session(path: Path) -> onnxruntime.InferenceSession:
    """Open a model."""
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def cosine(path: Path, reader: ImageReader, count: int = 16) -> float:
    """Return the mean cosine between outputs of a model and of the float model."""
    sessions = [session(model) for model in (FLOAT, path)]
    found = []
    for image in reader.paths[:count]:
        sample = {reader.name: reader.input_of(image)}
        one, other = (opened.run(None, sample)[0].ravel().astype(np.float64) for opened in sessions)
        found.append(one @ other / np.sqrt((one @ one) * (other @ other)))
    return float(np.mean(found))


def precision(path: Path, scenes: int) -> float:
    """Return the mean average precision of the embedded detector on drawn scenes."""
    opened = session(path)
    return demo.evaluate(lambda image: opened.run(None, {demo.INPUT_NAME: image})[0], scenes)["map"]


def main() -> None:
    """Quantize and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=100, help="generated scenes to evaluate the embedded detector on")
    scenes = parser.parse_args().scenes
    if not FLOAT.exists():
        raise SystemExit("run `python prepare.py` in this folder first")
    reader = ImageReader(IMAGES, FLOAT)
    vai_q_onnx.quantize_static(
        FLOAT,
        QUANTIZED,
        reader,
        quant_format=QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.CalibrationMethod.Percentile,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    embedded = json.loads(INPUTS.read_text())["embedded"]
    print(f"{'model':<32}{'size':>12}{'mean average precision' if embedded else 'cosine to float':>25}")
    for path in (FLOAT, QUANTIZED):
        score = precision(path, scenes) if embedded else cosine(path, reader)
        print(f"{path!s:<32}{path.stat().st_size / 1000:>9,.0f} kB{score:>25.4f}")


if __name__ == "__main__":
    main()
