"""The exported model computes what the trained module computes, bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import fx, nn
from torch_nets import Detector, batches

import quantry
from quantry import demo
from quantry.errors import ModelError, RecipeError, SelectionError
from quantry.recipe import (
    DataType,
    DerivedBias,
    EmitOptions,
    FixNeuron,
    Gptq,
    PerChannel,
    PlanOptions,
    Qdq,
    Recipe,
    ScaleOptions,
    TensorSpec,
    TuneOptions,
    VitisDialect,
    VitisQdq,
)
from quantry.torchfront import (
    DistillationLoss,
    ExportOptions,
    FloatScopes,
    QatOptions,
    QuantizedModule,
    export,
    freeze,
    qat,
    quantize_graph,
)
from quantry.torchfront.lowering import lower


def test_export_equals_the_module_to_the_bit(quantized: QuantizedModule, tmp_path: Path) -> None:
    done = export(quantized, tmp_path / "model.onnx", batches(1, 4)[0])
    assert done.is_exact, done
    assert done.violations == ()
    assert "agree bit for bit" in str(done)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)


def test_exported_graph_is_clean(quantized: QuantizedModule, tmp_path: Path) -> None:
    export(quantized, tmp_path / "model.onnx", batches(1, 1)[0])
    graph = onnx.load(tmp_path / "model.onnx").graph
    operators = {node.op_type for node in graph.node}
    assert not operators & {"Identity", "Cast", "Constant", "Shape", "Gather", "BatchNormalization"}
    assert [size.dim_value for size in graph.input[0].type.tensor_type.shape.dim] == [1, 3, 12, 12]
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert stored["stem.conv.weight_quantized"] == onnx.TensorProto.INT8


def test_module_and_onnx_path_choose_the_same_scales(captured: fx.GraphModule, npu_recipe: Recipe) -> None:
    module = quantize_graph(captured, batches(), npu_recipe)
    proto = ir.serde.serialize_model(lower(captured).model)
    result = quantry.quantize(proto, [{"x": x.numpy()} for x in batches()], npu_recipe, store=None)
    ours, theirs = module.definition.params.tensors, result.params.tensors
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(entry.scale, theirs[name].scale) for name, entry in ours.items())


@pytest.mark.parametrize(
    "written", [Qdq(), VitisQdq(VitisDialect.VAI), FixNeuron()], ids=lambda kind: type(kind).__name__
)
def test_every_format_is_written(quantized: QuantizedModule, tmp_path: Path, written: object) -> None:
    done = export(quantized, tmp_path / "model.onnx", batches(1, 2)[0], ExportOptions(format=written))
    assert done.is_exact, done


def test_model_around_a_quantized_module_stays_float(quantized: QuantizedModule, tmp_path: Path) -> None:
    model = Detector(quantized).eval()
    options = ExportOptions(input_names=("images",), output_names=("scores", "means"), dynamic_batch=True)
    done = export(model, tmp_path / "model.onnx", batches(1, 2)[0], options)
    assert max(entry.largest for entry in done.differences) < 1e-6
    assert done.violations == ()
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [value.name for value in graph.input] == ["images"]
    assert [value.name for value in graph.output] == ["scores", "means"]
    sigmoid = next(node for node in graph.node if node.op_type == "Sigmoid" and node.output[0] != "silu_sigmoid")
    assert "Dequantize" in sigmoid.input[0]
    assert isinstance(model.base_model, QuantizedModule)


def test_frozen_module_in_a_model_is_exported_alike(quantized: QuantizedModule, tmp_path: Path) -> None:
    example = batches(1, 1)[0]
    export(Detector(quantized), tmp_path / "a.onnx", example)
    export(Detector(freeze(quantized)), tmp_path / "b.onnx", example)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_model_without_quantized_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="quantize it first"):
        export(nn.Conv2d(3, 3, 1), tmp_path / "model.onnx", batches()[0])


def test_wrong_number_of_names_is_refused(quantized: QuantizedModule, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="all 1 inputs"):
        export(quantized, tmp_path / "m.onnx", batches()[0], ExportOptions(input_names=("a", "b")))


SPECS = {
    "asymmetric uint8, per channel": (
        TensorSpec(DataType.UINT8, symmetric=False),
        TensorSpec(granularity=PerChannel()),
    ),
    "int16 and int8": (TensorSpec(DataType.INT16), TensorSpec()),
    "int8 and int4": (TensorSpec(), TensorSpec(DataType.INT4, granularity=PerChannel())),
}


@pytest.mark.parametrize("label", SPECS)
def test_other_types_are_trained_and_exported(captured: fx.GraphModule, tmp_path: Path, label: str) -> None:
    activation, weight = SPECS[label]
    plan = PlanOptions(activation=activation, weight=weight, bias=DerivedBias(), force_pass_through=True)
    module = quantize_graph(captured, batches(), Recipe(plan=plan, scale=ScaleOptions(), emit=EmitOptions()))
    module.train()
    module(batches()[0]).sum().backward()
    done = export(module.eval(), tmp_path / "model.onnx", batches(1, 2)[0])
    # Sums of floats that are no whole multiples of one number depend on their order.
    step = float(module.get_submodule(module.layout.quantizers["linear"]).scale)
    assert max(entry.largest for entry in done.differences) <= 1.01 * step


def test_scopes_stay_float_by_module_class_and_tensor(captured: fx.GraphModule, npu_recipe: Recipe) -> None:
    by_module = quantize_graph(captured, batches(), npu_recipe, float_scopes=FloatScopes(modules=("deep",)))
    assert "deep.conv.weight" not in by_module.definition.plan.weights
    assert "stem.conv.weight" in by_module.definition.plan.weights
    by_class = quantize_graph(captured, batches(), npu_recipe, float_scopes=FloatScopes(types=(nn.Linear,)))
    assert "head.weight" not in by_class.definition.plan.weights
    by_tensor = quantize_graph(captured, batches(), npu_recipe, float_scopes=FloatScopes(tensors=("linear",)))
    assert "head.weight" not in by_tensor.definition.plan.weights
    with pytest.raises(SelectionError, match="'stem'"):
        quantize_graph(captured, batches(), npu_recipe, float_scopes=FloatScopes(modules=("stemm",)))


def test_plain_module_must_be_captured_first(npu_recipe: Recipe) -> None:
    with pytest.raises(ModelError, match="capture"):
        quantize_graph(nn.ReLU(), batches(), npu_recipe)


def test_opset_is_raised_on_request(quantized: QuantizedModule, tmp_path: Path) -> None:
    export(quantized, tmp_path / "model.onnx", batches()[0], ExportOptions(opset=19))
    assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == 19


def test_tuned_recipes_fold_batch_norms_for_good(captured: fx.GraphModule, npu_recipe: Recipe, tmp_path: Path) -> None:
    module = quantize_graph(captured, batches(), replace(npu_recipe, tune=TuneOptions((Gptq(),))))
    assert not module.layout.layers
    assert any("cannot be trained" in str(note) for note in module.definition.notes)
    assert export(module, tmp_path / "model.onnx", batches(1, 2)[0]).is_exact


def test_embedded_detector_is_trained_from_its_onnx_file(npu_recipe: Recipe, tmp_path: Path) -> None:
    samples = [torch.from_numpy(entry[demo.INPUT_NAME]) for entry in demo.calibration_inputs(2)]
    module = quantize_graph(demo.MODEL_PATH, samples, npu_recipe)
    assert len(module.layout.layers) > 50
    loss = DistillationLoss(module)
    with torch.no_grad():
        before = float(loss(samples[0]))
    qat(module, samples, lambda _, batch: loss(batch), QatOptions(steps=3, scale_rate=None, decay=None))
    with torch.no_grad():
        assert float(loss(samples[0])) < before
    assert export(module, tmp_path / "model.onnx", samples[0]).is_exact
