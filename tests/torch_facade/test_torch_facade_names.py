"""Names of quantry.torch exist, and misspelt ones suggest the nearest."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from quantry import torch as facade
from quantry.errors import DataError, ModelError, RecipeError
from quantry.torch import (
    Config,
    ExporterConfig,
    ExportOptions,
    FloatScopes,
    ModelExporter,
    ModelQuantizer,
    MovingAverage,
    OnnxExporterConfig,
    QatOptions,
    QatSchedule,
    QLayerConfig,
    QTensorConfig,
    QuantizedModule,
    capture,
    export_onnx,
    learn_scales,
    qat,
    quantize_graph,
)

EXAMPLE = torch.rand(2, 3, 6, 6)


@pytest.fixture(scope="module")
def frozen() -> QuantizedModule:
    graph = capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), EXAMPLE)
    return facade.freeze(quantize_graph(graph, [EXAMPLE], "XINT8"))


def test_every_public_name_is_listed_and_found() -> None:
    assert set(facade.__all__) <= set(dir(facade))
    assert all(getattr(facade, name) is not None for name in facade.__all__)
    with pytest.raises(AttributeError, match="did you mean 'ModelQuantizer'"):
        _ = facade.ModelQuantiser
    from quantry import torchfront

    assert set(torchfront.__all__) <= set(dir(torchfront))


MISSPELT: dict[str, tuple[Callable[[], object], str]] = {
    "spec": (lambda: QTensorConfig(dtyp=1), "QTensorConfig .* did you mean 'dtype'"),
    "layer": (lambda: QLayerConfig(weights=1), "QLayerConfig .* did you mean 'weight'"),
    "config": (lambda: Config(excluded=[]), "QConfig .* did you mean 'exclude'"),
    "exporter": (lambda: ExporterConfig(onnx_config=1), "ExporterConfig .* did you mean 'onnx_export_config'"),
    "file": (lambda: OnnxExporterConfig(filename="a"), "did you mean 'file_name'"),
    "training": (lambda: QatOptions(step=3), "QatOptions .* did you mean 'steps'"),
    "schedule": (lambda: QatSchedule(observe_untill=3), "did you mean 'observe_until'"),
    "scopes": (lambda: FloatScopes(module="a"), "did you mean 'modules'"),
    "options": (lambda: ExportOptions(dynamic_batches=True), "did you mean 'dynamic_batch'"),
    "quantizer": (lambda: ModelQuantizer(quant_config="XINT8"), "ModelQuantizer .* did you mean 'config'"),
    "data": (lambda: ModelQuantizer("XINT8").quantize_model(None, calibration_data=1), "did you mean 'dataloader'"),
    "capture": (lambda: capture(None, example_inputs=1), "capture .* did you mean 'example'"),
    "graph": (lambda: quantize_graph(None, None, "XINT8", float_scope=1), "did you mean 'float_scopes'"),
    "qat": (lambda: qat(None, dataloader=1), "qat .* did you mean 'batches'"),
    "switch": (lambda: learn_scales(None, weight=False), "learn_scales .* did you mean 'weights'"),
    "average": (lambda: MovingAverage(None, decays=1), "did you mean 'decay'"),
    "export": (lambda: export_onnx(None, "", None, opset=17), "did you mean 'opset_version'"),
    "method": (lambda: ModelExporter(ExporterConfig(), "").export_onnx_model(None, 1, opsets=1), "export_onnx"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_keyword_suggests_the_nearest(name: str) -> None:
    call, message = MISSPELT[name]
    with pytest.raises(RecipeError, match=message):
        call()


def test_plain_module_is_captured_with_its_data() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    assert ModelQuantizer("XINT8").quantize_model(model, EXAMPLE)(EXAMPLE).shape == (2, 4, 4, 4)
    for nothing in (None, [], torch.utils.data.DataLoader([])):
        with pytest.raises(DataError, match="captured with the first calibration sample, got no data"):
            ModelQuantizer("XINT8").quantize_model(model, nothing)
    with pytest.raises(ModelError, match="must be a torch module, got NoneType"):
        ModelQuantizer.freeze(None)


def test_path_of_a_file_is_a_file(frozen: QuantizedModule, tmp_path: Path) -> None:
    wanted = tmp_path / "new" / "model.onnx"
    assert export_onnx(frozen, wanted, EXAMPLE).path == wanted
    assert wanted.is_file()
    exporter = ModelExporter(ExporterConfig(), tmp_path / "other.onnx")
    assert exporter.export_onnx_model(frozen, EXAMPLE).path == tmp_path / "other.onnx"
    assert export_onnx(frozen, tmp_path, EXAMPLE).path == tmp_path / "quark_model.onnx"
    with pytest.raises(RecipeError, match="must be a directory if file_name is set too"):
        export_onnx(frozen, wanted, EXAMPLE, onnx_config=OnnxExporterConfig(file_name="another.onnx"))
