"""Real ONNX files that come inside wheels, and plausible data for each.

The packages are looked up without importing them, because they are installed without what they need to run.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Sample = dict[str, np.ndarray]

ANY = -100.0
"""A floor for presets that are too coarse for a model, in onnxruntime's own quantizer as well."""


@dataclass(frozen=True)
class ZooModel:
    """One file.

    Attributes:
        package: Name of the package that holds it.
        path: Its path inside.
        samples: Makes a few samples.
        other: Makes one more, of another shape where the model allows it.
        floors: Presets to try, with the lowest SQNR in dB that each must keep, some 5 dB below what was measured.
    """

    package: str
    path: str
    samples: Callable[[], list[Sample]]
    other: Callable[[], Sample]
    floors: dict[str, float]

    def find(self) -> Path | None:
        """Return where the file is, or None where the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        file = Path(spec.submodule_search_locations[0]) / self.path
        return file if file.exists() else None


def _drawn(lines: list[str], width: int, height: int) -> np.ndarray:
    """Return black text on white as float32 [3, height, width] in [0, 1]."""
    image = Image.new("RGB", (width, height), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    size = height // (len(lines) + 1)
    font = ImageFont.load_default(size=size)
    for row, line in enumerate(lines):
        draw.text((6, row * (size + 4)), line, fill=(0, 0, 0), font=font)
    return (np.asarray(image, np.float32) / 255).transpose(2, 0, 1)


def _text_line(text: str, width: int) -> Sample:
    return {"x": (_drawn([text], width, 48) * 2 - 1)[None]}


def _page(first: int, width: int) -> Sample:
    pixels = _drawn([f"Line {first}: 12.{first}5", f"Total {first + 3} EUR"], width, 64)
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
    deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    return {"x": ((pixels - mean) / deviation)[None]}


def _file_bytes(content: bytes) -> Sample:
    """Return the first and the last 1024 bytes, filled up with 256 as magika wants it."""
    first, last = list(content[:1024]), list(content[-1024:])
    return {"bytes": np.array([first + [256] * (1024 - len(first)) + [256] * (1024 - len(last)) + last], np.int32)}


def _files() -> list[Sample]:
    return [
        _file_bytes(Path(__file__).read_bytes()),
        _file_bytes(b'{"name": [1, 2.5, null]}\n' * 90),
        _file_bytes(b"<html><body><p>hello</p></body></html>\n" * 40),
    ]


def _voice(pitch: float, length: int = 576) -> np.ndarray:
    time = np.arange(length) / 16000
    noise = np.random.default_rng(int(pitch)).normal(size=length)
    tone = np.sin(2 * np.pi * pitch * time) * (1 + np.sin(2 * np.pi * 3 * time))
    return (0.3 * tone + 0.02 * noise).astype(np.float32)[None]


def _state(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.2, (2, 1, 128)).astype(np.float32)


def _speech(seed: int) -> Sample:
    return {"input": _voice(150 + 60 * seed), "state": _state(seed)}


def _speech_with_rate(seed: int) -> Sample:
    return {**_speech(seed), "sr": np.array(16000, np.int64)}


def _speech_sequence(length: int) -> Sample:
    windows = np.concatenate([_voice(150 + 60 * index) for index in range(length)])
    return {"input": windows, "h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}


def _several(make: Callable[[int], Sample]) -> Callable[[], list[Sample]]:
    return lambda: [make(index) for index in range(1, 4)]


PRESETS = ("XINT8", "U8S8_AAWS", "CPU_INT8")

# Weights inside the bodies of If are quantized, activations are not.
_BODIES = {"XINT8": ANY, "U8S8_AAWS": ANY, "CPU_INT8": 15.0}
"""All of these models is inside an If, which stays float."""

ZOO: dict[str, ZooModel] = {
    "magika": ZooModel(
        "magika",
        "models/standard_v3_3/model.onnx",
        _files,
        lambda: {"bytes": np.concatenate([sample["bytes"] for sample in _files()])},
        {"XINT8": ANY, "U8S8_AAWS": 13, "CPU_INT8": 11},
    ),
    "text detector": ZooModel(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        _several(lambda index: _page(index, 96)),
        lambda: _page(9, 128),
        {"U8S8_AAWS": 3},
    ),
    "text recogniser": ZooModel(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        lambda: [_text_line(text, 96) for text in ("Hello", "int8")],
        lambda: _text_line("Other 7", 128),
        {"CPU_INT8": 8},
    ),
    "text direction": ZooModel(
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: [_text_line(text, 192) for text in ("Hello 42", "quantized", "int8 3.14")],
        lambda: _text_line("Other 7", 160),
        {"XINT8": ANY, "U8S8_AAWS": 9, "CPU_INT8": 9},
    ),
    "speech": ZooModel(
        "silero_vad", "data/silero_vad.onnx", _several(_speech_with_rate), lambda: _speech_with_rate(5), _BODIES
    ),
    "speech without If": ZooModel(
        "silero_vad",
        "data/silero_vad_op18_ifless.onnx",
        _several(_speech_with_rate),
        lambda: _speech_with_rate(5),
        _BODIES,
    ),
    "speech 16 kHz": ZooModel(
        "silero_vad",
        "data/silero_vad_16k_op15.onnx",
        _several(_speech_with_rate),
        lambda: _speech_with_rate(5),
        {"XINT8": ANY, "U8S8_AAWS": ANY, "CPU_INT8": 15},
    ),
    "speech sequence": ZooModel(
        "silero_vad",
        "data/silero_vad_16k_sequence.onnx",
        lambda: [_speech_sequence(3), _speech_sequence(2)],
        lambda: _speech_sequence(5),
        {"XINT8": ANY, "U8S8_AAWS": ANY, "CPU_INT8": 16},
    ),
    "speech half": ZooModel(
        "silero_vad",
        "data/silero_vad_half.onnx",
        _several(_speech),
        lambda: _speech(5),
        {"XINT8": 6, "U8S8_AAWS": 8, "CPU_INT8": 21},
    ),
    "speech openvino": ZooModel(
        "silero_vad",
        "data/silero_vad_openvino_16k.onnx",
        _several(_speech),
        lambda: _speech(5),
        {"XINT8": ANY, "U8S8_AAWS": ANY, "CPU_INT8": 15},
    ),
}
"""Of the large models only the presets that are quick enough for every run."""
