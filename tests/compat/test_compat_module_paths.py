"""Every module path of the table can be imported, has its names, and leaves the facade packages as they are."""

import importlib
import subprocess
import sys

import pytest

import quantry.onnx
import quantry.vai_q_onnx
from quantry.module_paths import MODULE_NAMES

PATHS = [(package, path) for package, paths in MODULE_NAMES.items() for path in paths]


@pytest.mark.parametrize(("package", "path"), PATHS)
def test_module_has_the_names_of_the_table(package: str, path: str) -> None:
    if package == "quantry.torch":
        pytest.importorskip("torch")
    importlib.import_module(package)
    module = importlib.import_module(f"{package}.{path}")
    assert module.__name__ == f"{package}.{path}"
    assert module.__all__ == MODULE_NAMES[package][path].split()
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize(
    "line",
    [
        "import quantry.onnx.quantization.config.spec as spec; spec.Int8Spec",
        "from quantry.onnx.quantization import config; config.QConfig",
        "from quantry.onnx.quantization.config.custom_config import XINT8_QCONFIG, A8W8_CONFIG",
        "from quantry.vai_q_onnx import shape_inference; shape_inference.quant_pre_process",
        "import quantry.torch.quantization.config.type; quantry.torch.quantization.config.type.Dtype",
    ],
)
def test_module_is_found_in_a_new_process(line: str) -> None:
    if "torch" in line:
        pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", line], check=True)


def test_names_are_the_same_objects_everywhere() -> None:
    for path in ("quant_utils", "quantization.quant_utils"):
        assert importlib.import_module(f"quantry.onnx.{path}").QuantType is quantry.onnx.QuantType
    assert quantry.vai_q_onnx.QuantType is quantry.onnx.QuantType


def test_unknown_module_and_name_are_import_errors() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("quantry.onnx.quantization.nothing")
    with pytest.raises(ImportError):
        exec("from quantry.onnx.quant_utils import ModelQuantizer", {})


def test_function_of_the_torch_facade_is_not_replaced_by_a_module() -> None:
    pytest.importorskip("torch")
    import quantry.torch

    importlib.import_module("quantry.torch.export.api")
    assert callable(quantry.torch.export)
