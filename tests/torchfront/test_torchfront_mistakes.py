"""Mistakes raise an error that says what to do instead."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch_nets import Detector, SmallNet, batches

from quantry.errors import DataError, ModelError, RecipeError, UserError
from quantry.recipe import Recipe
from quantry.torchfront import (
    DistillationLoss,
    ExportOptions,
    MovingAverage,
    QatOptions,
    QuantizedModule,
    capture,
    enable_quantizers,
    export,
    float_copy,
    float_teacher,
    freeze,
    freeze_batch_norm,
    freeze_observers,
    learn_scales,
    qat,
    quantize_graph,
    start_observers,
)


def test_frozen_module_loads_no_weights(quantized: QuantizedModule) -> None:
    final = freeze(quantized)
    with pytest.raises(ModelError, match="before the module is frozen"):
        final.load_state_dict(final.state_dict())
    around = nn.ModuleDict({"base": final})
    with pytest.raises(ModelError, match="before the module is frozen"):
        around.load_state_dict(around.state_dict())


@pytest.mark.parametrize("switch", [learn_scales, start_observers])
def test_scales_of_a_frozen_module_stay(quantized: QuantizedModule, switch: object) -> None:
    with pytest.raises(ModelError, match="before the module is frozen"):
        switch(freeze(quantized))


def test_frozen_module_has_a_float_copy_and_no_teacher(quantized: QuantizedModule) -> None:
    x = 4 * batches()[0]  # beyond the levels that were calibrated
    final = freeze(quantized)
    with torch.no_grad():
        torch.testing.assert_close(float_copy(final)(x), float_copy(quantized)(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="only has the trained weights"):
        float_teacher(final)


@pytest.mark.parametrize("use", [lambda model: qat(model, batches()), DistillationLoss, float_teacher])
def test_model_around_a_quantized_module_names_it(quantized: QuantizedModule, use: object) -> None:
    with pytest.raises(ModelError, match="Detector, whose submodule 'base_model'"):
        use(Detector(quantized))
    with pytest.raises(ModelError, match="quantize it first"):
        use(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "switch", [learn_scales, start_observers, freeze_observers, freeze_batch_norm, enable_quantizers]
)
def test_switch_without_anything_to_switch_is_refused(quantized: QuantizedModule, switch: object) -> None:
    with pytest.raises(ModelError, match=rf"got Linear without any; quantize it first; in {switch.__name__}"):
        switch(nn.Linear(2, 2))
    switch(Detector(quantized))


def test_random_calibration_is_recalled(captured: fx.GraphModule, npu_recipe: Recipe) -> None:
    with pytest.warns(UserWarning, match="no calibration data"):
        module = quantize_graph(captured, None, npu_recipe)
    assert "no calibration data given" in str(module.definition.notes[0])
    # Without scales nothing is calibrated, and there is nothing to say.
    assert not any("calibration" in str(note) for note in quantize_graph(captured, None, "BF16").definition.notes)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "a DataLoader or an iterable, got NoneType"),
        ([], "got none"),
        ((batch for batch in batches(1)), "1 that can be read only once"),
        ([float("nan") * batches()[0]], "finite number, got nan at step 0"),
        ([{"x": batches()[0], "label": batches()[0]}], "unexpected keyword argument 'label'"),
        ([batches()[0][:, :, 1:]], "sizes it was captured with"),
    ],
    ids=["none", "empty", "generator", "nan", "key", "size"],
)
def test_batches_that_cannot_train_are_refused(quantized: QuantizedModule, data: object, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        qat(quantized, data, options=QatOptions(steps=2))


def test_batches_by_name_train(quantized: QuantizedModule) -> None:
    qat(quantized, [{"x": batches()[0]}], options=QatOptions(steps=1))


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda module, batch: None, "one number as a tensor, got NoneType"),
        (lambda module, batch: module(batch), r"got one of shape \[2, 5\]; take its mean"),
        (lambda module: module, "function of module and batch, got .* too many positional"),
    ],
    ids=["none", "vector", "arguments"],
)
def test_loss_that_is_none_is_refused(quantized: QuantizedModule, loss: object, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        qat(quantized, batches(), loss, QatOptions(steps=1))


def test_teacher_must_have_what_is_compared(quantized: QuantizedModule) -> None:
    with pytest.raises(ModelError, match="under the same names"):
        DistillationLoss(quantized, nn.Flatten(), tensors="all")
    with pytest.raises(ModelError, match=r"student's shapes \[\(2, 5\)\], got \[\(2, 432\)\]"):
        DistillationLoss(quantized, nn.Flatten())(batches()[0])


def test_weights_at_rest_are_not_trained() -> None:
    model = SmallNet()
    model.stem.requires_grad_(requires_grad=False)
    module = quantize_graph(capture(model, batches()[0]), batches(), "XINT8")
    resting = {name for name, part in module.named_parameters() if not part.requires_grad}
    assert resting == {"stem.conv.weight", "stem.bn.weight", "stem.bn.bias"}
    before = {name: module.get_parameter(name).detach().clone() for name in resting}
    qat(module, batches(), options=QatOptions(steps=2, decay=None))
    assert all(torch.equal(value, module.get_parameter(name)) for name, value in before.items())
    ready = quantize_graph(capture(model.requires_grad_(requires_grad=False), batches()[0]), batches(), "XINT8")
    assert all(part.requires_grad for part in ready.parameters())


def test_gradient_of_scales_comes_by_name(quantized: QuantizedModule) -> None:
    assert learn_scales(quantized, "TQT")
    with pytest.raises(RecipeError, match="one of straight-through, lsq, tqt, got 'tqd'; did you mean 'tqt'"):
        learn_scales(quantized, "tqd")


def test_learned_scales_stay_positive(captured: fx.GraphModule) -> None:
    module = quantize_graph(captured, batches(), "A16W8")
    qat(module, batches(), options=QatOptions(steps=3))
    freeze(module)
    scale = learn_scales(module, "lsq")[0]
    scale.data.neg_()
    with pytest.raises(ModelError, match=r"must stay positive, got -.* learn_scales\(model, 'tqt'\)"):
        freeze(module)


@pytest.mark.parametrize(
    "use",
    [
        lambda module: freeze(nn.Linear(2, 2)),
        lambda module: MovingAverage(None),
        lambda module: quantize_graph(None, batches(), "XINT8"),
        lambda module: qat(module, batches(), options={"steps": 2}),
        lambda module: export(module, "model.onnx", batches()[0], {"opset": 17}),
        lambda module: export(
            module, "model.onnx", batches()[0], ExportOptions(input_names=("x",), output_names=("x",))
        ),
        lambda module: quantize_graph(capture(nn.ReLU(), batches()[0]), batches(), "XINT8", float_scopes=["head"]),
    ],
)
def test_argument_of_another_kind_is_named(quantized: QuantizedModule, use: object) -> None:
    with pytest.raises(UserError, match="must"):
        use(quantized)


@pytest.mark.parametrize(
    "convert",
    [
        lambda module: module.half(),
        lambda module: module.to(torch.bfloat16),
        lambda module: nn.Sequential(module).double(),
    ],
)
def test_conversion_to_another_type_is_refused_with_a_way_that_works(quantized: QuantizedModule, convert: Any) -> None:
    with pytest.raises(ModelError, match=r"must compute in float32, got a conversion to .*torch\.autocast"):
        convert(quantized)
    assert {part.dtype for part in quantized.to("cpu").float().parameters()} == {torch.float32}


def test_criterion_is_no_loss_of_module_and_batch(quantized: QuantizedModule) -> None:
    for loss in (nn.CrossEntropyLoss(), DistillationLoss(quantized)):
        with pytest.raises(RecipeError, match="function of module and batch"):
            qat(quantized, batches(), loss)


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", "10"), ("steps", -1), ("learning_rate", 0.0), ("scale_rate", -1.0), ("clip", 0), ("decay", 1.0)],
)
def test_option_that_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(RecipeError, match=rf"QatOptions\.{field} must be"):
        QatOptions(**{field: value})


def test_float_copy_cannot_be_exported(quantized: QuantizedModule, tmp_path: Path) -> None:
    copied, x = float_copy(quantized), batches()[0]
    for model in (copied, Detector(copied)):
        with pytest.raises(ModelError, match="as after float_copy"):
            export(model, tmp_path / "model.onnx", x)
    with pytest.raises(ModelError, match="as after float_copy"):
        freeze(copied)
    final = freeze(quantized)
    enable_quantizers(final, enabled=False)
    with pytest.raises(ModelError, match="as after float_copy"):
        export(final, tmp_path / "model.onnx", x)
    assert not (tmp_path / "model.onnx").exists()


def test_quantized_model_is_not_quantized_again(quantized: QuantizedModule, npu_recipe: Recipe) -> None:
    with pytest.raises(ModelError, match="already quantized"):
        quantize_graph(quantized, batches(), npu_recipe)
    graph = fx.GraphModule(nn.ModuleDict({"part": quantized}), _calling("part"))
    with pytest.raises(ModelError, match="'part' is already quantized"):
        quantize_graph(graph, batches(), npu_recipe)


def _calling(name: str) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.call_module(name, (graph.placeholder("x"),)))
    return graph
