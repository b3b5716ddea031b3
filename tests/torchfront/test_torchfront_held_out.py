"""`qat` returns what is better on batches it was not trained on, or what it started from, and says which."""

import math

import pytest
import torch
from torch import Tensor, nn

from quantry.errors import DataError
from quantry.torchfront import QatOptions, QuantizedModule, capture, float_teacher, qat, quantize_graph
from quantry.torchfront.held_out import Batches, HeldOut, HeldOutImprovement


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy copies of five pictures, and which."""
    pictures = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=generator)
    return pictures[labels] + 0.5 * torch.randn(count, 3, 8, 8, generator=generator), labels


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.BatchNorm2d(16)),
        *(nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.GELU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5))


def trained(kind: object) -> nn.Module:
    torch.manual_seed(0)
    assert callable(kind)
    model: nn.Module = kind().train()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    images, labels = data(512, 0)
    for start in range(0, 40 * 32, 32):
        part = slice(start % 512, start % 512 + 32)
        loss = nn.functional.cross_entropy(model(images[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def error(module: nn.Module, teacher: nn.Module, seed: int = 77) -> float:
    images, _ = data(256, seed)
    with torch.no_grad():
        return float((module(images) - teacher(images)).square().mean() / teacher(images).square().mean())


BATCHES = [data(4, 100 + number)[0] for number in range(15)]


@pytest.fixture(scope="module", params=[(convolutions, "XINT8"), (perceptron, "S8S8_AAWS")], ids=["npu", "cpu"])
def started(request: pytest.FixtureRequest) -> tuple[nn.Module, str]:
    kind, preset = request.param
    return trained(kind), preset


def quantized(model: nn.Module, preset: str) -> QuantizedModule:
    return quantize_graph(capture(model, BATCHES[0]), BATCHES, preset)


def test_short_training_with_default_options_does_not_lose(started: tuple[nn.Module, str]) -> None:
    model, preset = started
    module = quantized(model, preset)
    before = error(module, model)
    qat(module, BATCHES, options=QatOptions(steps=20))
    assert module.gain is not None
    assert error(module, model) <= before
    assert str(module.gain) in map(str, module.definition.notes)
    if preset == "XINT8":  # much is lost by power-of-two scales, so much can be gained
        assert module.gain.step
        assert module.gain.after < module.gain.before
        assert error(module, model) < 0.8 * before


def test_harmful_training_returns_the_start(started: tuple[nn.Module, str]) -> None:
    module = quantized(*started)
    expected = module(BATCHES[0])
    qat(module, BATCHES, options=QatOptions(steps=3, learning_rate=3.0, decay=None))
    assert module.gain is not None
    assert module.gain.step == 0
    assert "as it was before" in str(module.gain)
    assert torch.equal(module(BATCHES[0]), expected)


def test_own_loss_and_own_batches_decide() -> None:
    model = trained(convolutions)
    module = quantized(model, "XINT8")
    teacher = float_teacher(module)
    seen: list[int] = []

    def loss(student: nn.Module, batch: Tensor) -> Tensor:
        seen.append(len(batch))
        return (student(batch) - teacher(batch)).square().mean()

    kept = [data(7, 500)[0], data(7, 501)[0]]
    qat(module, BATCHES, loss, QatOptions(steps=4), held_out=kept)
    assert module.gain is not None
    assert module.gain.batches == 2
    assert seen.count(4) == 4  # training
    assert seen.count(7) >= 4  # the start and later checks
    qat(module, BATCHES, loss, QatOptions(steps=1), held_out=[])
    assert seen.count(4) == 5


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_one_batch_in_five_is_held_out(count: int) -> None:
    batches = Batches(list(range(count)), None)
    assert len(batches.held_out) == min(8, max(1, count // 5))
    assert batches.trained_on == (count == 1)
    first = [batch for batch, _ in zip(batches, range(2 * count), strict=False)]
    assert set(first).isdisjoint(batches.held_out) == (count > 1)
    assert len(set(first)) == max(1, count - len(batches.held_out))


def test_loader_without_a_fixed_order_gives_its_first_batches() -> None:
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=1)
    batches = Batches(loader, None)
    assert [int(batch) for batch in batches.held_out] == [0, 1]
    assert {int(batch) for batch, _ in zip(batches, range(30), strict=False)} == set(range(2, 10))


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True, "batch_size": 4},
        {"shuffle": True, "batch_size": 4, "drop_last": True},
        {"shuffle": True, "batch_size": 64},  # one batch: some of its samples are held out
        {"shuffle": True, "batch_size": 30, "drop_last": True},
        {"sampler": torch.utils.data.RandomSampler(range(40), replacement=True, num_samples=12), "batch_size": 2},
        {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 40, 40), "batch_size": 4},
        {"batch_sampler": [[30, 1, 2], [3, 4, 5], [6, 7, 8, 30]]},
    ],
)
def test_samples_of_a_shuffling_loader_are_held_out_once(settings: dict[str, object]) -> None:
    loader = torch.utils.data.DataLoader([{"x": torch.tensor(number)} for number in range(40)], **settings)
    batches = Batches(loader, None)
    held_out = {int(at) for batch in batches.held_out for at in batch["x"]}
    trained_on = [int(at) for batch, _ in zip(batches, range(50), strict=False) for at in batch["x"]]
    assert held_out
    assert trained_on
    assert held_out.isdisjoint(trained_on)
    assert not batches.trained_on


def test_shuffling_loader_of_one_sample_is_trained_on() -> None:
    batches = Batches(torch.utils.data.DataLoader([7], shuffle=True), None)
    assert [int(batch) for batch, _ in zip(batches, range(3), strict=False)] == [7, 7, 7]
    assert batches.trained_on


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (HeldOutImprovement(2.0, 1.0, 3, 8, by_sample=True), "on 8 held-out samples from 2 to 1, by 50 %"),
        (HeldOutImprovement(2.0, 1.0, 3, 2), "on 2 held-out batches from 2"),
        (HeldOutImprovement(2.0, 1.0, 3, 1), "on 1 held-out batch from 2"),
        (HeldOutImprovement(2.0, 2.0, 0, 1, trained_on=True), "did not lower the loss on the training batch, 2:"),
    ],
)
def test_gain_says_what_was_compared(gain: HeldOutImprovement, text: str) -> None:
    assert text in str(gain)


def test_gain_that_is_not_finite_is_none() -> None:
    module = quantized(trained(perceptron), "S8S8_AAWS")
    calls = iter(range(100))

    def loss(student: nn.Module, batch: Tensor) -> Tensor:
        next(calls)
        return student(batch).square().mean() * (1.0 if student.training else math.nan)

    qat(module, BATCHES[:5], loss, QatOptions(steps=2))
    assert module.gain is not None
    assert module.gain.step == 0


@pytest.mark.parametrize("count", [1, 4])
def test_generator_is_read_once_and_counted_in_full(count: int) -> None:
    read = iter(Batches((number for number in range(count)), None))
    trained_on = [next(read) for _ in range(max(1, count - 1))]
    assert trained_on == list(range(1, count)) or trained_on == [0] == list(range(count))
    with pytest.raises(DataError, match=f"got {count} that can be read only once"):
        next(read)


@pytest.mark.parametrize(
    ("checked", "step"),
    [
        ([[4.0, 4.0], [1.0, 1.0], [1.1, 0.8]], 2),  # the last, which is as good as the best
        ([[4.0, 4.0], [1.0, 1.0], [3.0, 3.1]], 1),  # the best, which is clearly better
        ([[4.0, 4.0], [1.0, 1.0], [math.inf, 1.0]], 1),
        ([[4.0, 1.0], [0.5, 1.5], [0.5, 1.4]], 2),  # of two numbers one is worse, but the sum is less than half
        ([[4.0, 1.0], [2.5, 1.5], [2.5, 1.6]], 0),
        ([[4.0, 1.0, 1.0, 1.0, 1.0], [0.5, 1.1, 1.1, 0.5, 0.6]], 0),  # one of five says little
        ([[-1.0, -3.0], [-0.9, -3.2]], 0),
    ],
)
def test_state_is_returned_if_it_is_clearly_better(checked: list[list[float]], step: int) -> None:
    module = nn.Linear(1, 1)
    compared = HeldOut(lambda one, place: torch.tensor(checked[int(one.bias)][place]), range(len(checked[0])))
    for number in range(len(checked)):
        nn.init.constant_(module.bias, number)
        compared.check(module, number)
    gain = compared.finish(module, trained_on=False)
    assert gain.step == step
    assert int(module.bias) == step
    assert gain.after == pytest.approx(sum(checked[step]) / len(checked[step]))
