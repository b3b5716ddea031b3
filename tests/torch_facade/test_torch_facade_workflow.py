"""Quantize, train, freeze and export under the names of Quark for PyTorch."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
import torch
from torch import Tensor, nn

from quantry.errors import DataError, ModelError, RecipeError, SelectionError
from quantry.recipe import find_preset, to_plain, to_yaml
from quantry.torch import (
    Config,
    Dtype,
    ExporterConfig,
    JsonExporterConfig,
    ModelExporter,
    ModelQuantizer,
    OnnxExporterConfig,
    PerTensorPowOf2MinMSEObserver,
    QSchemeType,
    QuantizationConfig,
    QuantizationMode,
    QuantizationSpec,
    QuantizedModule,
    RoundType,
    ScaleType,
    TQTObserver,
    capture,
    export_onnx,
    quantize_graph,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.bn(self.conv(x))))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base_model = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.base_model(x).flatten(2).sigmoid()


def config(observer: type = PerTensorPowOf2MinMSEObserver, **fields: object) -> Config:
    spec = QuantizationSpec(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=observer,
        symmetric=True,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        is_dynamic=False,
    )
    layer = QuantizationConfig(weight=spec, input_tensors=spec, output_tensors=spec, bias=spec)
    return Config(global_quant_config=layer, quant_mode=QuantizationMode.fx_graph_mode, **fields)


@pytest.fixture(scope="module")
def data() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 8, 8) for _ in range(3)]


@pytest.fixture(scope="module")
def model() -> Wrapped:
    torch.manual_seed(0)
    return Wrapped().eval()


def test_whole_workflow_ends_in_onnx(model: Wrapped, data: list[Tensor], tmp_path: Path) -> None:
    graph = torch.export.export_for_training(model.base_model, (data[0][:1],)).module()
    graph = torch.fx.GraphModule(graph, graph.graph)
    quantizer = ModelQuantizer(config())
    quantized = quantizer.quantize_model(graph, data)
    assert isinstance(quantized, QuantizedModule)
    quantized.train()
    optimizer = torch.optim.SGD(quantized.parameters(), 0.01)
    quantized(data[0]).square().mean().backward()
    optimizer.step()
    whole = Wrapped().eval()
    whole.base_model = quantizer.freeze(quantized.eval())
    exporter = ModelExporter(config=ExporterConfig(json_export_config=JsonExporterConfig()), export_dir=tmp_path)
    done = exporter.export_onnx_model(whole, data[0][:1])
    assert done.path == tmp_path / "quark_model.onnx"
    assert max(entry.largest for entry in done.differences) < 1e-6
    onnx.checker.check_model(done.path, full_check=True)


def test_plain_module_is_captured_with_the_first_sample(model: Wrapped, data: list[Tensor]) -> None:
    quantized = ModelQuantizer(config(exclude=["head"])).quantize_model(model.base_model, [(x, 1) for x in data])
    assert "head.weight" not in quantized.definition.plan.weights
    with pytest.raises(DataError, match="no data"):
        ModelQuantizer(config()).quantize_model(model.base_model)


def test_names_of_an_onnx_model_stay_float(data: list[Tensor]) -> None:
    float_model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) { a = Relu(x) b = Sigmoid(a) y = Mul(a, b) }"""
    )
    for node, name in zip(float_model.graph.node, ("relu", "gate", "mul"), strict=True):
        node.name = name
    source = float_model.SerializeToString()
    for pattern in ("gate", "b", "ga*"):
        quantized = ModelQuantizer(config(exclude=[pattern])).quantize_model(source, data)
        assert quantized.definition.plan.quantized_nodes == ("relu", "mul")
    with pytest.raises(SelectionError, match="'gate'"):
        ModelQuantizer(config(exclude=["gat"])).quantize_model(source, data)


def test_example_by_another_name_raises_on_export(model: Wrapped, data: list[Tensor], tmp_path: Path) -> None:
    quantized = ModelQuantizer("XINT8").quantize_model(model.base_model, data)
    export_onnx(quantized, tmp_path, {"x": data[0]})
    with pytest.raises(DataError, match="input 'x' must be a tensor"):
        export_onnx(quantized, tmp_path, {"y": data[0]})


def test_learning_observers_give_scales_to_train(model: Wrapped, data: list[Tensor]) -> None:
    quantized = ModelQuantizer(config(TQTObserver)).quantize_model(model.base_model, data)
    assert any(name.endswith("log2_scale") for name, _ in quantized.named_parameters())


def test_freeze_replaces_quantized_parts_of_a_model(model: Wrapped, data: list[Tensor]) -> None:
    whole = Wrapped().eval()
    whole.base_model = ModelQuantizer(config()).quantize_model(model.base_model, data)
    assert ModelQuantizer.freeze(whole) is whole
    assert whole.base_model.is_frozen
    with pytest.raises(ModelError, match="without any"):
        ModelQuantizer.freeze(nn.ReLU())


def test_exporter_takes_file_name_dialect_and_names(model: Wrapped, data: list[Tensor], tmp_path: Path) -> None:
    quantized = ModelQuantizer(config()).quantize_model(model.base_model, data)
    done = export_onnx(
        quantized,
        tmp_path / "new",
        data[0],
        input_names=["images"],
        onnx_config=OnnxExporterConfig(file_name="model.onnx", dynamic_batch=True),
    )
    graph = onnx.load(tmp_path / "new" / "model.onnx").graph
    assert graph.input[0].name == "images"
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert done.is_exact


@pytest.mark.parametrize(
    ("name", "value"),
    [("verbose", True), ("do_constant_folding", False), ("uint4_int4_flag", True), ("dynamo", True)],
)
def test_unsupported_export_options_raise(name: str, value: bool, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=name):
        export_onnx(nn.ReLU(), tmp_path, torch.zeros(1), **{name: value})


def test_invalid_configurations_raise(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="QConfig"):
        ModelQuantizer(8)
    with pytest.raises(RecipeError, match="weight"):
        ModelQuantizer({"weight": "int8"})
    with pytest.raises(RecipeError, match="XINT8"):
        ModelQuantizer("XINT88")
    with pytest.raises(RecipeError, match="ExporterConfig"):
        ModelExporter(config={}, export_dir=tmp_path)
    with pytest.raises(RecipeError, match="defaults"):
        JsonExporterConfig(weight_format="fake_quantized")
    with pytest.raises(RecipeError, match="ending in"):
        OnnxExporterConfig(file_name="model.pb")


def test_presets_and_recipes_are_accepted_as_configuration(model: Wrapped, data: list[Tensor], tmp_path: Path) -> None:
    graph = capture(model.base_model, data[0])
    recipe = find_preset("XINT8").recipe
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    wanted = quantize_graph(graph, data, recipe)(data[0])
    for config in ("XINT8", recipe, tmp_path / "recipe.yaml", to_plain(recipe)):
        assert torch.equal(ModelQuantizer(config).quantize_model(graph, data)(data[0]), wanted)
        assert torch.equal(quantize_graph(graph, data, config)(data[0]), wanted)


@pytest.mark.parametrize("name", ["UINT8_DYNAMIC_QUANT", "BFP16"])
def test_presets_that_torch_cannot_compute_raise(name: str, model: Wrapped, data: list[Tensor]) -> None:
    with pytest.raises(RecipeError, match=r"quantry\.quantize"):
        quantize_graph(capture(model.base_model, data[0]), data, name)
