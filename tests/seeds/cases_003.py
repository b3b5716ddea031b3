"""Cases of document 003: the tutorial of vai_q_onnx."""

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
from seed_case import Case, Repair, Seed
from seed_models import Reader, constants, images, is_power_of_two, kinds, outputs, saved

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet50_ptq"

REPAIRS: tuple[Repair, ...] = (
    Repair(5, "python prepare.py", "python prepare.py --count 4", "a small form of the example"),
    Repair(6, "QDQ_U8S8.py", "QDQ_U8S8.py --scenes 2", "a small form of the example"),
    Repair(7, "input_model_path: str", "input_model_path=input_model_path", "a signature is written as a call"),
    Repair(7, "output_model_path: str", "output_model_path=output_model_path", "a signature is written as a call"),
    Repair(7, ": bool = ", "=", "a signature is written as a call"),
    Repair(7, ": int = ", "=", "a signature is written as a call"),
    Repair(7, ": str = ", "=", "a signature is written as a call"),
)


def installed(seed: Seed) -> None:
    """Nothing has to be built: the installed package has the API of the tutorial."""
    assert seed.commands()[0][0] in ("sh", "pip")
    distribution = metadata.distribution("quantry")
    assert distribution.metadata["Name"] == "quantry"
    assert any(entry.name == "quantry" for entry in distribution.entry_points)
    package = Path(__file__).parents[2] / "src" / "quantry"
    # Wheels ship one compiled library, which is optional; there is no extension module for users to build.
    assert {path.name for path in package.rglob("*.so")} <= {"_kernels.so"}
    __import__("quantry.vai_q_onnx")


def fix_neuron(seed: Seed) -> None:
    path = seed.folder / "quantized.onnx"
    names = {"model_input": saved(seed.folder), "model_output": str(path), "calibration_data_reader": Reader()}
    seed.run(**names, **_imported(seed))
    assert ("ai.onnx.contrib", "FixNeuron") in kinds(path)
    positions = [
        attribute.s.decode()
        for node in onnx.load(path).graph.node
        if node.op_type == "FixNeuron"
        for attribute in node.attribute
        if attribute.name == "pos"
    ]
    assert positions
    assert all(position.lstrip("-").isdigit() for position in positions)
    weight, scale = constants(path)["w3_snapped"], float(constants(path)["w3_scale"])
    assert is_power_of_two(scale)
    np.testing.assert_array_equal(weight / scale, np.round(weight / scale))
    difference = np.abs(outputs(path, images(1)[0]) - outputs(names["model_input"], images(1)[0]))
    assert difference.max() < 0.5


def _imported(seed: Seed) -> dict[str, object]:
    if "import vai_q_onnx" in seed.source:
        return {}
    from quantry import vai_q_onnx

    return {"vai_q_onnx": vai_q_onnx}


def prepared(seed: Seed) -> None:
    folder = seed.folder / "onnx_example"
    shutil.copytree(EXAMPLE, folder)
    _, command = seed.commands()
    subprocess.run(command, cwd=folder, check=True, timeout=200, capture_output=True)
    assert (folder / "models" / "float.infer.onnx").is_file()
    assert len(list((folder / "calibration_images").iterdir())) == 4


def quantized(seed: Seed) -> None:
    folder = seed.folder / "onnx_example"
    shutil.copytree(EXAMPLE, folder)
    (command,) = seed.commands()
    subprocess.run([command[0], "prepare.py", "--count", "2"], cwd=folder, check=True, timeout=200, capture_output=True)
    done = subprocess.run(command, cwd=folder, check=True, timeout=200, capture_output=True, text=True)
    assert "mean average precision" in done.stdout
    model = folder / "models" / "quantized.U8S8.onnx"
    assert {("", "QuantizeLinear"), ("", "DequantizeLinear")} <= kinds(model)
    types = {value.dtype.name for name, value in constants(model).items() if name.endswith("_zero_point")}
    assert types == {"uint8", "int8", "int32"}
    assert model.stat().st_size < 0.6 * (folder / "models" / "float.infer.onnx").stat().st_size


def pre_processed(seed: Seed) -> None:
    path = seed.folder / "prepared.onnx"
    source = saved(seed.folder)
    seed.run(input_model_path=source, output_model_path=str(path))
    model = onnx.load(path)
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}
    shapes = {value.name: value for value in model.graph.value_info}
    assert [size.dim_value for size in shapes["c2"].type.tensor_type.shape.dim][1:] == [4, 8, 8]
    np.testing.assert_allclose(outputs(path, images(1)[0]), outputs(source, images(1)[0]), rtol=1e-4, atol=1e-5)


CASES: dict[int, Case] = {
    1: installed,
    2: installed,
    3: installed,
    4: fix_neuron,
    5: prepared,
    6: quantized,
    7: pre_processed,
    8: fix_neuron,
}

PENDING: dict[int, str] = {}
