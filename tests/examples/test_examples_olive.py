"""The Olive pass in examples/olive, where Olive is installed; the calls that Olive makes of AMD's API everywhere."""

import importlib
import json
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from quantry.onnx import CLEConfig, ModelQuantizer, QConfig, QLayerConfig, parse_data_type

EXAMPLE = Path(__file__).parents[2] / "examples" / "olive"
TENSOR = {
    "symmetric": False,
    "scale_type": "ScaleType.Float32",
    "calibration_method": "CalibMethod.MinMax",
    "quant_granularity": "QuantGranularity.Tensor",
    "data_type": "UInt8",
}


def network() -> onnx.ModelProto:
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4] x) => (float[1, 4] y) { y = Sigmoid (x) }'
    return parser.parse_model(text)


def test_configuration_from_a_workflow_file_is_read_and_written() -> None:
    plain = {"input_tensors": TENSOR, "weight": {**TENSOR, "symmetric": True, "data_type": "Int8"}}
    config = QLayerConfig.from_dict(plain)
    assert config.to_dict() == plain
    assert parse_data_type("Int7") is None
    quantizer = ModelQuantizer(QConfig(config, algo_config=[CLEConfig()], extra_options={"UseRandomData": True}))
    model = quantizer.quantize_model(network())
    assert model is not None
    assert "QuantizeLinear" in {node.op_type for node in model.graph.node}


def test_package_file_names_the_pass() -> None:
    package = json.loads((EXAMPLE / "package.json").read_text())
    module, _, name = package["passes"]["QuantryQuantization"]["module_path"].partition(".")
    assert f"class {name}(Pass)" in (EXAMPLE / f"{module}.py").read_text()


def test_pass_quantizes_a_model_of_olive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("olive.passes")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    made = importlib.import_module("quantry_pass").QuantryQuantization
    sys.modules.pop("quantry_pass", None)
    handler = importlib.import_module("olive.model").ONNXModelHandler
    create = importlib.import_module("olive.passes.olive_pass").create_pass_from_dict
    onnx.save(network(), tmp_path / "float.onnx")
    with pytest.warns(UserWarning, match="no calibration data"):
        result = create(made, {"recipe": "A8W8"}, disable_search=True).run(
            handler(tmp_path / "float.onnx"), str(tmp_path / "out")
        )
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(result.model_path).graph.node}
