"""Files and functions stay small enough to read."""

import ast
from pathlib import Path

import pytest

import quantry

SOURCE = Path(quantry.__file__).parent
FILE_LINES, FUNCTION_LINES, PARAMETERS = 500, 60, 6
ALLOWED_FUNCTIONS = {
    "execute/interpreter/linear.py:conv": "its parameters are the attributes of the ONNX operator",
    "execute/interpreter/linear.py:conv_transpose": "its parameters are the attributes of the ONNX operator",
    "execute/interpreter/linear.py:gemm": "its parameters are the attributes of the ONNX operator",
    "execute/interpreter/reduction.py:max_pool": "its parameters are the attributes of the ONNX operator",
    "execute/interpreter/reduction.py:average_pool": "its parameters are the attributes of the ONNX operator",
    "execute/interpreter/resize.py:resize": "its parameters are the attributes of the ONNX operator",
    "execute/interpreter/recurrent.py:lstm": "its parameters are the inputs and attributes of the ONNX operator",
    "execute/interpreter/recurrent.py:gru": "its parameters are the inputs and attributes of the ONNX operator",
    "execute/interpreter/recurrent.py:rnn": "its parameters are the inputs and attributes of the ONNX operator",
    "torchfront/lowering/attention.py:attention": "its parameters are those of torch's operator",
    "cli/evaluate.py:evaluate": "the command line's options are its parameters",
    "torch/exporter.py:export_onnx": "the documented signature of Quark for PyTorch",
    "numerics/triton_kernels.py:quantize_kernel": "a kernel takes each pointer and constant by itself",
    "numerics/triton_kernels.py:gradient_kernel": "a kernel takes each pointer and constant by itself",
    "tune/triton_kernels.py:by_value": "a kernel takes each pointer and constant by itself",
    "tune/triton_kernels.py:row_kernel": "a kernel takes each pointer and constant by itself",
    "tune/triton_kernels.py:products": "a kernel takes each pointer and constant by itself",
    "tune/triton_kernels.py:step_kernel": "a kernel takes each pointer and constant by itself",
    "tune/triton_kernels.py:step_bias": "a kernel takes each pointer and constant by itself",
    "autosearch/run.py:search": "one keyword for each thing a user brings, and what each may be",
    "auto/run.py:quantize": "one keyword for each thing a user brings, and what each may be",
    "quantization.py:quantize": "one keyword for each thing a user brings, and what each may be",
    "onnx/pre_process.py:quant_pre_process": "the documented signature of onnxruntime",
    "torch/saving.py:save_params": "the arguments of AMD's function",
    "torch/saving.py:load_params": "the arguments of AMD's function",
}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_file_is_short_and_named_for_what_is_inside(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES
    assert path.stem.lstrip("_") not in FORBIDDEN_NAMES


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_are_short_and_take_few_parameters(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if f"{path.relative_to(SOURCE)}:{node.name}" in ALLOWED_FUNCTIONS:
            continue
        assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{node.name} is too long"
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        assert len([name for name in names if name not in ("self", "cls")]) <= PARAMETERS, f"{node.name} takes too many"


def test_allow_list_has_no_stale_entries() -> None:
    for entry in ALLOWED_FUNCTIONS:
        path, name = entry.split(":")
        assert f"def {name}(" in (SOURCE / path).read_text()
