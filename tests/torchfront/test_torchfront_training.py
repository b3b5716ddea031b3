"""A quantized module trains like any other."""

import copy
import io
import pickle
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import fx, nn
from torch_nets import SmallNet, batches

from quantry.errors import DataError, ModelError, RecipeError, SelectionError
from quantry.recipe import (
    DataType,
    FloatBias,
    PlanOptions,
    PrepareOptions,
    Recipe,
    SmoothQuant,
    TensorSpec,
    resolve_recipe,
)
from quantry.torchfront import (
    DistillationLoss,
    MovingAverage,
    QatOptions,
    QatSchedule,
    QuantizedModule,
    capture,
    export,
    float_copy,
    float_teacher,
    freeze,
    freeze_batch_norm,
    learn_scales,
    qat,
    quantize_graph,
)


def scales(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items() if name.endswith("scale")}


def step(module: nn.Module, rate: float = 0.05, *, precision: torch.dtype | None = None) -> float:
    optimizer = torch.optim.SGD(module.parameters(), rate)
    x = batches(1, 8)[0]
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        loss = (module(x).float() - x.mean((1, 2, 3))[:, None]).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_float_copy_computes_what_the_model_computes(net: SmallNet, quantized: QuantizedModule) -> None:
    x = batches(1, 3)[0]
    with torch.no_grad():
        torch.testing.assert_close(float_copy(quantized)(x), net(x), rtol=1e-4, atol=1e-5)


def test_recommended_recipe_equalizes_and_rounds_and_its_teacher_is_the_float_model(tmp_path: Path) -> None:
    net = SmallNet().eval()
    with torch.no_grad():  # channels of the gate that one scale serves badly
        net.deep.bn.weight *= torch.logspace(-1.5, 1.5, 8)
    data = batches(6)
    recipe, _ = resolve_recipe("RECOMMENDED-NPU")
    smooth = replace(recipe.equalize, smooth=SmoothQuant(gain=1.0, tolerance=0.0))
    recipe = replace(recipe, equalize=smooth, prepare=PrepareOptions())  # an NPU averages a little differently
    module = quantize_graph(capture(net, data[0]), data, recipe)
    assert any("SmoothQuant divided the channels of" in str(note) for note in module.definition.notes)
    assert module.definition.original_weights
    again = pickle.loads(pickle.dumps(module))
    with torch.no_grad():
        torch.testing.assert_close(float_teacher(module)(data[0]), net(data[0]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(float_teacher(again)(data[0]), net(data[0]), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(float_copy(module)(data[0]), net(data[0]), rtol=1e-4, atol=1e-5)
    qat(module, data, options=QatOptions(steps=4))
    assert export(module, tmp_path / "model.onnx", data[0]).is_exact


def test_parameters_keep_the_names_of_the_model(net: SmallNet, quantized: QuantizedModule) -> None:
    assert {name for name, _ in net.named_parameters()} == {name for name, _ in quantized.named_parameters()}
    assert quantized.stem.bn.running_mean.shape == (8,)


def test_plain_loop_lowers_the_loss_and_moves_no_scale(quantized: QuantizedModule) -> None:
    before = scales(quantized)
    quantized.train()
    losses = [step(quantized) for _ in range(12)]
    quantized.eval()
    assert losses[-1] < 0.95 * losses[0]
    assert all(torch.equal(before[name], value) for name, value in scales(quantized).items())


def test_batch_statistics_move_in_training_and_rest_when_frozen(quantized: QuantizedModule) -> None:
    start = quantized.stem.bn.running_mean.clone()
    quantized(batches()[0])
    assert torch.equal(start, quantized.stem.bn.running_mean)
    quantized.train()
    freeze_batch_norm(quantized)
    quantized(batches()[0])
    assert torch.equal(start, quantized.stem.bn.running_mean)
    freeze_batch_norm(quantized, frozen=False)
    quantized(batches()[0])
    assert not torch.equal(start, quantized.stem.bn.running_mean)


def test_normalization_of_a_single_value_per_channel_trains() -> None:
    layers = nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
    image = torch.rand(1, 3, 8, 8)
    module = quantize_graph(capture(nn.Sequential(*layers).eval(), image), [image], "XINT8")
    expected = module(image)
    found = module.train()(image)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    found.sum().backward()
    assert all(torch.isfinite(part.grad).all() for part in module.parameters() if part.grad is not None)


def test_training_with_batch_statistics_follows_the_float_model(net: SmallNet, quantized: QuantizedModule) -> None:
    x = batches(1, 16)[0]
    reference, copied = copy.deepcopy(net).train(), float_copy(quantized).train()
    torch.testing.assert_close(copied(x), reference(x), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(copied.stem.bn.running_var, reference.stem.bn.running_var, rtol=1e-4, atol=1e-5)


def test_frozen_module_equals_the_trained_one_to_the_bit(quantized: QuantizedModule) -> None:
    quantized.train()
    for _ in range(3):
        step(quantized)
    quantized.eval()
    final = freeze(quantized)
    x = batches(1, 4)[0]
    assert torch.equal(final(x), quantized(x))
    assert final.is_frozen
    assert not any(part.requires_grad for part in final.parameters())
    assert not any("bn" in name for name in final.state_dict())


def test_state_dict_restores_a_trained_module(calibrated: QuantizedModule, quantized: QuantizedModule) -> None:
    learn_scales(quantized)
    quantized.train()
    step(quantized)
    stream = io.BytesIO()
    torch.save(quantized.state_dict(), stream)
    stream.seek(0)
    other = copy.deepcopy(calibrated)
    other.load_state_dict(torch.load(stream, weights_only=True))
    x = batches()[0]
    assert torch.equal(other.eval()(x), quantized.eval()(x))


def test_copy_and_pickle_keep_everything(quantized: QuantizedModule) -> None:
    quantized.train()
    freeze_batch_norm(quantized)
    learn_scales(quantized, activations=False)
    x = batches()[0]
    for copied in (copy.deepcopy(quantized), pickle.loads(pickle.dumps(quantized))):
        assert copied.training
        assert torch.equal(copied(x), quantized(x))
        assert dict(copied.named_parameters()).keys() == dict(quantized.named_parameters()).keys()


def test_mixed_precision_trains(quantized: QuantizedModule) -> None:
    quantized.train()
    first = step(quantized, precision=torch.bfloat16)
    for _ in range(6):
        last = step(quantized, precision=torch.bfloat16)
    assert last < first


def test_compiled_module_computes_the_same_with_the_same_gradients(quantized: QuantizedModule) -> None:
    learn_scales(quantized, activations=False)
    freeze_batch_norm(quantized.train())
    x = batches()[0]
    torch._dynamo.reset()
    results, gradients = [], []
    for module in (quantized, torch.compile(quantized, backend="aot_eager", dynamic=False)):
        quantized.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(module(x))
        results[-1].square().sum().backward()
        gradients.append({name: part.grad.clone() for name, part in quantized.named_parameters()})
    torch.testing.assert_close(results[1], results[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-4)


def test_learned_scales_train(quantized: QuantizedModule) -> None:
    learned = learn_scales(quantized)
    before = [part.detach().clone() for part in learned]
    quantized.train()
    step(quantized)
    assert any(not torch.equal(old, new) for old, new in zip(before, learned, strict=True))


def test_moving_average_follows_the_weights(quantized: QuantizedModule) -> None:
    average = MovingAverage(quantized, decay=0.5, warm_up=1)
    before = average.module.head.weight.clone()
    with torch.no_grad():
        quantized.head.weight += 1
    average.update(quantized)
    moved = average.module.head.weight - before
    assert 0.5 < float(moved.mean()) < 1.0
    with pytest.raises(RecipeError, match="decay"):
        MovingAverage(quantized, decay=1.0)


def test_moving_average_has_the_buffers_of_the_model_that_was_taken_in(quantized: QuantizedModule) -> None:
    average = MovingAverage(quantized, decay=0.5)
    name, scale = next(pair for pair in quantized.named_buffers() if pair[0].endswith(".scale"))
    scale *= 2
    assert not torch.equal(average.module.get_buffer(name), scale)
    average.update(quantized)
    for (name, kept), seen in zip(average.module.named_buffers(), quantized.buffers(), strict=True):
        assert torch.equal(kept, seen), name


def test_schedule_switches_observers_and_statistics(quantized: QuantizedModule) -> None:
    schedule = QatSchedule(observe_until=2, batch_norm_until=3)
    layer = quantized.get_submodule(quantized.layout.layers["stem.conv.weight"])
    found = []
    for index in range(5):
        schedule.apply(quantized, index)
        found.append((layer.weight_quantizer.observing, layer.frozen))
    assert found == [(True, False), (True, False), (False, False), (False, True), (False, True)]
    with pytest.raises(RecipeError, match="observe_until"):
        QatSchedule(observe_until=-1)


def test_moving_average_follows_observers(quantized: QuantizedModule) -> None:
    options = QatOptions(steps=3, scale_rate=None, schedule=QatSchedule(observe_until=2))
    before = {name: part.clone() for name, part in quantized.state_dict().items() if name.endswith("scale")}
    trained = qat(quantized, batches(), options=options, held_out=[])
    after = trained.state_dict()
    assert any(name.endswith("observed") for name in after)
    assert any(not torch.equal(after[name], value) for name, value in before.items() if name in after)


def test_distillation_brings_the_module_nearer_to_the_float_model(captured: fx.GraphModule) -> None:
    coarse = TensorSpec(DataType.INT4)
    module = quantize_graph(captured, batches(), Recipe(plan=PlanOptions(weight=coarse, bias=FloatBias())))
    losses = [DistillationLoss(module, tensors="all"), DistillationLoss(module)]
    with torch.no_grad():
        before = [float(loss(batches()[0])) for loss in losses]
    options = QatOptions(steps=40, learning_rate=1e-2, decay=None)
    trained = qat(module, batches(), options=options, held_out=batches(6)[4:])
    assert trained is module
    assert not trained.training
    with torch.no_grad():
        after = [float(loss(batches()[0])) for loss in losses]
    assert after[0] < before[0]
    assert after[1] < 0.5 * before[1]


def test_distillation_names_the_tensors_it_knows(quantized: QuantizedModule) -> None:
    with pytest.raises(SelectionError, match="'cat'"):
        DistillationLoss(quantized, tensors=["catt"])


def test_training_on_labels_takes_any_loss(quantized: QuantizedModule) -> None:
    data = [(x, x.mean((1, 2, 3)).long().abs()) for x in batches()]

    def loss(module: QuantizedModule, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(module(batch[0]), batch[1])

    seen: list[float] = []
    options = QatOptions(steps=8, scale_rate=None, decay=None)
    qat(quantized, data, loss, options, report=lambda _, value: seen.append(value))
    assert len(seen) == 8


def test_recording_changes_nothing_where_there_is_no_gpu(calibrated: QuantizedModule) -> None:
    found = []
    for record in (False, True):
        module = copy.deepcopy(calibrated)
        seen: list[float] = []
        options = QatOptions(steps=3, record=record)
        qat(module, batches(), options=options, report=lambda _, value, seen=seen: seen.append(value))
        found.append(seen)
    assert found[0] == found[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels are recorded on a GPU")
def test_recorded_steps_train_alike(calibrated: QuantizedModule) -> None:
    found = []
    for record in (False, True):
        module, seen = copy.deepcopy(calibrated).cuda(), []
        data = [*(batch.cuda() for batch in batches()), batches(1, 3)[0].cuda()]
        options = QatOptions(steps=10, record=record)
        qat(module, data, options=options, report=lambda _, value, seen=seen: seen.append(value))
        found.append(torch.tensor(seen))
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=1e-4)


def test_training_without_batches_is_refused(quantized: QuantizedModule) -> None:
    with pytest.raises(DataError, match="at least one batch"):
        qat(quantized, [])


def test_frozen_module_is_not_trained(quantized: QuantizedModule) -> None:
    with pytest.raises(ModelError, match="frozen"):
        qat(freeze(quantized), batches())


@pytest.mark.parametrize(
    "wrong",
    [{"decay": 1.5}, {"clip": 0.0}, {"schedule": 3}, {"steps": 0}, {"record": True, "schedule": QatSchedule(4)}],
    ids=str,
)
def test_options_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="QatOptions"):
        QatOptions(**wrong)


def test_only_modules_are_captured() -> None:
    with pytest.raises(ModelError, match="torch module"):
        capture("model.onnx", batches()[0])


def test_calibration_data_come_as_tensors_tuples_dicts_and_loaders(captured: object, npu_recipe: Recipe) -> None:
    tensors = batches()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.cat(tensors)), batch_size=2)
    forms = [tensors, [(x, 3) for x in tensors], [{"x": x} for x in tensors], loader]
    found = [scales(quantize_graph(captured, data, npu_recipe)) for data in forms]
    for other in found[1:]:
        assert all(torch.equal(value, other[name]) for name, value in found[0].items())


# Far above what it takes on a busy machine. torch waits for half an hour by default if the other process dies.
PATIENCE = 90


def _train_in_parallel(rank: int, module: QuantizedModule, folder: str) -> None:
    # The processes meet at a file: a free port found in advance may be taken by another test before it is used.
    meeting, wait = f"file://{folder}/meeting", timedelta(seconds=PATIENCE)
    torch.distributed.init_process_group("gloo", meeting, timeout=wait, rank=rank, world_size=2)
    parallel = nn.parallel.DistributedDataParallel(module.train())
    optimizer = torch.optim.SGD(parallel.parameters(), 0.05)
    for x in batches()[rank::2]:
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    torch.save({name: part.detach() for name, part in module.named_parameters()}, Path(folder) / f"{rank}.pt")
    # Before the group: the last owner of the group waits for its thread, and this object would do so holding Python's
    # global lock, which the thread may need to drop the last reduction. Without it, one of some hundred runs hangs.
    del parallel
    torch.distributed.destroy_process_group()


def test_processes_in_parallel_stay_alike(
    quantized: QuantizedModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise gloo looks up the machine's own name, which may wait for a name server.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    # Importing torch is most of the time, so this process is one of the two.
    other = torch.multiprocessing.get_context("spawn").Process(
        target=_train_in_parallel, args=(1, copy.deepcopy(quantized), str(tmp_path)), daemon=True
    )
    other.start()
    before = quantized.head.weight.clone()
    try:
        _train_in_parallel(0, quantized, str(tmp_path))
        other.join(PATIENCE)
        assert other.exitcode == 0
    finally:
        other.kill()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(part, second[name]) for name, part in first.items())
    assert not torch.equal(first["head.weight"], before)
