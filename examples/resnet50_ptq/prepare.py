"""Puts a float model and calibration images where resnet_ptq_example_QDQ_U8S8.py looks for them.

Without arguments: quantry's embedded detector and scenes drawn by its generator.
"""

import argparse
import json
import shutil
from pathlib import Path

from PIL import Image

from quantry import demo
from quantry.vai_q_onnx import shape_inference


def numbers(text: str) -> list[float]:
    """Read ``0.485,0.456,0.406``."""
    return [float(part) for part in text.split(",")]


def drawn_images(folder: Path, count: int) -> None:
    """Write scenes as images."""
    for index, scene in enumerate(demo.calibration_scenes(count)):
        Image.fromarray(scene.image).save(folder / f"{index:04d}.png")


def copied_images(source: Path, folder: Path, count: int) -> None:
    """Copy the first images of a folder."""
    kinds = {".jpg", ".jpeg", ".png"}
    found = sorted(path for path in source.rglob("*") if path.suffix.lower() in kinds)
    if not found:
        raise SystemExit(f"--images must hold .jpg or .png files, got none in {source}")
    for path in found[:count]:
        shutil.copy(path, folder / path.name)


def main() -> None:
    """Prepare model, images and the note of how images become inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=demo.model_path(), help="float ONNX model")
    parser.add_argument("--images", type=Path, help="folder of calibration images; default: drawn scenes")
    parser.add_argument("--count", type=int, default=100, help="images to take; 100 to 1000 are usually enough")
    parser.add_argument("--pixel-scale", type=float, default=1.0, help="factor on pixel values 0..255")
    parser.add_argument("--mean", type=numbers, default=[0.0, 0.0, 0.0], help="per-channel mean after that")
    parser.add_argument("--std", type=numbers, default=[1.0, 1.0, 1.0], help="per-channel deviation after that")
    arguments = parser.parse_args()

    models, images = Path("models"), Path("calibration_images")
    models.mkdir(exist_ok=True)
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir()
    if arguments.images is None:
        drawn_images(images, arguments.count)
    else:
        copied_images(arguments.images, images, arguments.count)

    shape_inference.quant_pre_process(
        input_model_path=str(arguments.model),
        output_model_path=str(models / "float.infer.onnx"),
        skip_symbolic_shape=False,
    )
    inputs: dict[str, object] = {"scale": arguments.pixel_scale, "mean": arguments.mean, "std": arguments.std}
    inputs["embedded"] = arguments.model == demo.model_path()
    (models / "inputs.json").write_text(json.dumps(inputs))
    print(f"float model in {models / 'float.infer.onnx'}, {len(list(images.iterdir()))} images in {images}")


if __name__ == "__main__":
    main()
