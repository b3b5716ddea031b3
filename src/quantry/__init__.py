"""Turns a float neural network into the quantized one you can ship.

Example:
    >>> import quantry
    >>> result = quantry.quantize("model.onnx", data="images/", target="vitisai")  # doctest: +SKIP
    >>> result.save("model.int8.onnx")  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantry import errors
    from quantry.auto import fix, quantize
    from quantry.autosearch import search
    from quantry.data.images import ImageOptions
    from quantry.diagnosis import CalibrationCheck, Diagnosis, check_calibration, diagnose
    from quantry.memo import DirectoryStore, MemoryStore
    from quantry.quantization import QuantizationResult
    from quantry.recipe import Recipe
    from quantry.report import write_report, write_search_report

__version__ = "0.1.0"

__all__ = [
    "CalibrationCheck",
    "Diagnosis",
    "DirectoryStore",
    "ImageOptions",
    "MemoryStore",
    "QuantizationResult",
    "Recipe",
    "__version__",
    "check_calibration",
    "diagnose",
    "errors",
    "fix",
    "quantize",
    "search",
    "write_report",
    "write_search_report",
]

# Names are loaded on first use, so that `import quantry` costs nothing and needs none of the heavy libraries.
_HOME = {
    "CalibrationCheck": "quantry.diagnosis",
    "Diagnosis": "quantry.diagnosis",
    "DirectoryStore": "quantry.memo",
    "ImageOptions": "quantry.data",
    "MemoryStore": "quantry.memo",
    "QuantizationResult": "quantry.quantization",
    "Recipe": "quantry.recipe",
    "check_calibration": "quantry.diagnosis",
    "diagnose": "quantry.diagnosis",
    "fix": "quantry.auto",
    "quantize": "quantry.auto",
    "search": "quantry.autosearch",
    "write_report": "quantry.report",
    "write_search_report": "quantry.report",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("quantry.errors")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'quantry' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
