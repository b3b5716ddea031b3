"""Call shapes of AMD's training scripts: classification with TQT and LSQ, and a detector's trainer with an average."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from quantry.compat import mapped_imports
from quantry.errors import ModelError, RecipeError
from quantry.recipe import Entropy, MinMax, MinMSE

with mapped_imports():
    from quark.common.utils.import_utils import export_for_training
    from quark.torch import ModelQuantizer, export_onnx
    from quark.torch.export.api import load_params, save_params
    from quark.torch.quantization.config.config import Config, QuantizationConfig, QuantizationSpec, TQTSpec
    from quark.torch.quantization.config.type import (
        Dtype,
        QSchemeType,
        QuantizationMode,
        RoundType,
        ScaleType,
        TQTThresholdInitMeth,
    )
    from quark.torch.quantization.graph.ops.quant_stubs import DeQuantStub, QuantStub
    from quark.torch.quantization.graph.torch_utils import _active_bn, _enable_fake_quant, _enable_observer
    from quark.torch.quantization.observer.lsq_observer import LSQObserver
    from quark.torch.quantization.observer.observer import PerTensorMinMaxObserver, PerTensorPowOf2MinMSEObserver
    from quark.torch.quantization.observer.tqt_observer import TQTObserver


def network() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )


def images(count: int = 4) -> Any:
    return torch.rand(count, 3, 8, 8)


def spec(observer: Any, **more: Any) -> Any:
    return QuantizationSpec(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=observer,
        symmetric=True,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        is_dynamic=False,
        **more,
    )


def quantizer(activation: Any, weight: Any) -> Any:
    layer = QuantizationConfig(input_tensors=activation, output_tensors=activation, weight=weight, bias=weight)
    return ModelQuantizer(Config(global_quant_config=layer, quant_mode=QuantizationMode.fx_graph_mode))


def graph() -> Any:
    return export_for_training(network().eval(), (images(),)).module()


def thresholds(model: Any) -> list[Any]:
    return [part._log_threshold for part in model.modules() if isinstance(part, TQTObserver)]


def tqt(start: Any) -> Any:
    return spec(TQTObserver, qat_spec=TQTSpec(threshold_init_meth=start))


@pytest.mark.filterwarnings("ignore:no calibration data")
def test_trained_thresholds_start_at_the_first_batch(tmp_path: Path) -> None:
    workflow = quantizer(tqt(TQTThresholdInitMeth._KL_J), tqt(TQTThresholdInitMeth._3SD))
    model = workflow.quantize_model(graph(), [])  # no calibration: the scales are trained
    learned = thresholds(model)
    assert len(learned) >= 5
    before = [float(value.detach()) for value in learned]
    groups = [{"params": learned, "lr": 0.01}, {"params": [part for part in model.parameters() if part.dim()]}]
    optimizer = torch.optim.Adam(groups, 1e-3)
    model.train()
    for scale in (40.0, 1.0):
        loss = torch.nn.CrossEntropyLoss()(model(images() * scale), torch.tensor([0, 1, 2, 3]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # The input grew 40 times against random data in [0, 1): its threshold follows the first batch, then only training.
    assert max(float(value.detach()) - old for value, old in zip(learned, before, strict=True)) > 4
    assert not any(isinstance(part, LSQObserver) for part in model.modules())
    export_onnx(model=workflow.freeze(model.eval()), output_dir=tmp_path, input_args=images(1))
    assert (tmp_path / "quark_model.onnx").exists()


def test_threshold_starts_where_the_method_says() -> None:
    starts = (TQTThresholdInitMeth._MAX, TQTThresholdInitMeth._3SD, TQTThresholdInitMeth._KL_J, None)
    assert [tqt(start).method for start in starts] == [MinMax(), MinMSE(), Entropy(), MinMSE()]
    with pytest.raises(RecipeError, match="threshold_init_meth"):
        TQTSpec(threshold_init_meth="_3SD")


def test_trainer_switches_observers_and_keeps_an_average() -> None:
    workflow = quantizer(spec(PerTensorPowOf2MinMSEObserver), spec(PerTensorPowOf2MinMSEObserver))
    holder = torch.nn.Module()
    holder.base_model = workflow.quantize_model(graph(), [images()])
    average = deepcopy(holder).eval()
    holder.train()
    _enable_observer(holder, enable=False)
    _enable_fake_quant(holder, enable=True)
    _active_bn(holder, enable=False)
    scales = {name: value.clone() for name, value in holder.state_dict().items() if name.endswith("scale")}
    holder.base_model(images() * 100).sum().backward()
    assert all(torch.equal(holder.state_dict()[name], value) for name, value in scales.items())
    _enable_observer(holder, enable=True)
    holder.base_model(images() * 100)
    assert any(not torch.equal(holder.state_dict()[name], value) for name, value in scales.items())
    _enable_fake_quant(holder, enable=False)
    holder.eval()
    assert torch.allclose(holder.base_model(images(1) * 0), network().eval()(images(1) * 0), atol=1e-5)
    holder.load_state_dict(average.state_dict())
    # Averages of weights in trainers read the type of everything in a state.
    assert all(torch.is_tensor(value) for value in holder.state_dict().values())


class Head(torch.nn.Module):
    """A network whose ends are computed in float, as AMD's detector has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 4, 1)
        self.side, self.last = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 2, 1)
        self.quant_stub, self.dequant_stub = QuantStub, DeQuantStub

    def forward(self, x: Any) -> Any:
        marked = self.inner(self.quant_stub(self.first(x))) + self.side(x)
        return self.last(self.dequant_stub(marked)).sigmoid()


def test_only_what_lies_between_the_stubs_is_quantized(tmp_path: Path) -> None:
    workflow = quantizer(spec(PerTensorPowOf2MinMSEObserver), spec(PerTensorPowOf2MinMSEObserver))
    holder = torch.nn.Module()
    torch.manual_seed(2)
    captured = export_for_training(Head().eval(), (images(),)).module()
    holder.base_model = workflow.quantize_model(captured, [images()])
    average = deepcopy(holder)
    holder.train()
    holder.base_model(images()).sum().backward()
    average.load_state_dict(holder.state_dict())
    export_onnx(model=workflow.freeze(average.base_model.eval()), output_dir=tmp_path, input_args=images(1))
    written = onnx.load(tmp_path / "quark_model.onnx")
    producers = {name: node.op_type for node in written.graph.node for name in node.output}
    weights = [producers.get(node.input[1]) for node in written.graph.node if node.op_type == "Conv"]
    assert sorted(weights, key=str) == ["DequantizeLinear", "DequantizeLinear", None, None]
    assert "Identity" not in {node.op_type for node in written.graph.node}
    onnxruntime.InferenceSession(tmp_path / "quark_model.onnx").run(None, {"x": np.zeros((1, 3, 8, 8), np.float32)})


def test_saved_module_is_loaded_with_its_structure(tmp_path: Path) -> None:
    workflow = quantizer(spec(PerTensorMinMaxObserver), spec(PerTensorMinMaxObserver))
    frozen = workflow.freeze(workflow.quantize_model(graph(), [images()]).eval())
    example = images(1)
    save_params(
        frozen,
        model_type="net",
        args=(example,),
        export_dir=tmp_path,
        quant_mode=QuantizationMode.fx_graph_mode,
    )
    loaded = load_params(pth_path=str(tmp_path / "net_quantized.pth"), quant_mode=QuantizationMode.fx_graph_mode)
    assert torch.equal(loaded(example), frozen(example))
    export_onnx(model=loaded, output_dir=tmp_path, input_args=example)
    session = onnxruntime.InferenceSession(tmp_path / "quark_model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: example.numpy()})[0]
    assert np.abs(found - frozen(example).detach().numpy()).max() < 1e-4


def test_wrong_uses_raise(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="to save must be or contain a quantized module, got Sequential"):
        save_params(network(), "net", export_dir=tmp_path)
    with pytest.raises(ModelError, match=r"missing\.pth"):
        load_params(pth_path=tmp_path / "missing.pth")
    with pytest.raises(RecipeError, match="json_path must be omitted"):
        load_params(json_path="model.json", pth_path=tmp_path / "missing.pth")
