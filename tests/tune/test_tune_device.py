"""What runs on a GPU, here in torch on the processor: activations, moments, training; against onnxruntime and numpy."""

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import util

import numpy as np
import pytest
import torch
from test_tune_gptq import output_error
from test_tune_rows import problem_of, schedule
from tune_models import COARSE, build, chain, inputs, network, task_of

from quantry.errors import RecipeError
from quantry.execute import open_streams
from quantry.execute.tensor_stream import TensorSamples
from quantry.recipe import AdaQuant, AdaRound, DataType, Gptq, LayerTraining, LayerTuning, PlanOptions, TensorSpec
from quantry.tune import TuneTask, device_training, tune
from quantry.tune.adaround import second_term
from quantry.tune.compensation import joined
from quantry.tune.device_training import DeviceTraining
from quantry.tune.fused_rows import FusedRows
from quantry.tune.layer import find_layers
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layer_training import LayerTrainer, Training
from quantry.tune.quadratic import gather
from quantry.tune.row_problem import BiasGrid, RowProblem, rounding_rows, weight_rows
from quantry.tune.row_steps import NumpyRows
from quantry.tune.row_training import RowTraining
from quantry.tune.tensor_rows import TensorRows, tensors_of
from quantry.tune.walker import LayerVisit, LayerWalker

torch.set_num_threads(1)

OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization")


def visits(task: TuneTask, options: LayerTuning) -> Iterator[LayerVisit]:
    layers, _ = find_layers(task.model.model, task.plan, OPERATORS)
    yield from LayerWalker(task, layers, options).visits("test")


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "gpu_of", lambda device, models: "cpu" if device != "cpu" else None)


TYPES = [DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16, DataType.FLOAT16]


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("activation", TYPES)
def test_torch_feeds_layers_what_onnxruntime_feeds_them(activation: DataType) -> None:
    options = PlanOptions(TensorSpec(activation, symmetric=not activation.is_integer), COARSE.weight)
    task = task_of(network(), inputs((4, 9, 8), 5), options)
    theirs = [[visit.pair(sample) for sample in range(5)] for visit in visits(task, Gptq())]
    for visit, expected in zip(visits(task, Gptq(inference_device="cuda:0")), theirs, strict=True):
        assert visit.walker.device == "cpu"
        for sample in range(5):
            for ours, other in zip(visit.pair(sample), expected[sample], strict=True):
                assert ours.shape == other.shape
                # A sum in another order may round to the next integer.
                assert np.mean(np.abs(ours - other) <= 1e-4 * np.abs(other).max() + 1e-5) > 0.98


@pytest.mark.usefixtures("in_torch")
def test_moments_are_those_that_numpy_gathers() -> None:
    task = task_of(network(), inputs((4, 9, 8), 5))
    theirs = [joined(gather(visit, LayerProblem(visit, trains_bias=True).matrix)) for visit in visits(task, Gptq())]
    for visit, expected in zip(visits(task, Gptq(inference_device="cuda:0")), theirs, strict=True):
        found = joined(gather(visit, LayerProblem(visit, trains_bias=True).matrix))
        assert found.count == expected.count
        for name in ("gram", "cross", "power", "column_mean", "target_mean"):
            ours, other = getattr(found, name), getattr(expected, name)
            np.testing.assert_allclose(ours, other, atol=2e-2 * np.abs(other).max(), err_msg=visit.layer.name + name)


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("level", [0, 1, 2])
def test_memory_level_does_not_change_what_layers_see_in_torch(level: int) -> None:
    task = task_of(chain(), inputs((3, 8, 8), 3))
    sums = [
        [float(visit.pair(1)[0].sum()) for visit in visits(task, Gptq(memory=memory, inference_device="cuda:0"))]
        for memory in (0, level)
    ]
    assert sums[0] == sums[1]


@pytest.mark.usefixtures("in_torch")
def test_share_of_float_inputs_is_the_one_asked_for() -> None:
    task = task_of(chain(), inputs((3, 8, 8), 20))
    plain = [visit.pair(0)[0] for visit in visits(task, Gptq())][1]
    exact = [next(visit.tensor_pairs())[1] for visit in visits(task, Gptq(inference_device="cuda:0"))][1]
    options = Gptq(quantized_inputs=0.7, inference_device="cuda:0")
    mixed = [next(visit.tensor_pairs())[1] for visit in visits(task, options)][1]
    assert exact[:1].shape == plain.shape
    differing = float((exact != mixed).float().mean() / (exact != 0).float().mean())
    assert 0.2 < differing < 0.4


MIXING = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, 8, 8] x) => (float[n, 4, 8, 8] y)
{
    a = Conv <kernel_shape = [1, 1]> (x, wa, ba)
    m = ReduceMean <axes = [0], keepdims = 1> (a)
    s = Sub (a, m)
    y = Conv <kernel_shape = [1, 1]> (s, wb, bb)
}
"""


ANY_SIZE = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, h, w] x) => (float[n, 4, h, w] y)
{
    y = Conv <kernel_shape = [1, 1]> (x, wa, ba)
}
"""


def test_samples_are_joined_only_where_each_gets_what_it_would_get_alone() -> None:
    joined = task_of(chain(), inputs((3, 8, 8), 6))
    assert [len(chunk) for chunk in TensorSamples(joined.data, joined.model.model, "cpu").chunks] == [6]
    shapes = {"wa": (4, 3, 1, 1), "ba": (4,), "wb": (4, 4, 1, 1), "bb": (4,)}
    mixing = task_of(build(MIXING, shapes), inputs((3, 8, 8), 4))
    assert [len(chunk) for chunk in TensorSamples(mixing.data, mixing.model.model, "cpu").chunks] == [1] * 4


def test_samples_of_another_size_are_in_another_chunk() -> None:
    samples = [*inputs((3, 8, 8), 3), *inputs((3, 6, 8), 2), *inputs((3, 8, 8), 1)]
    task = task_of(build(ANY_SIZE, {"wa": (4, 3, 1, 1), "ba": (4,)}), samples)
    assert [len(chunk) for chunk in TensorSamples(task.data, task.model.model, "cpu").chunks] == [3, 2, 1]


def test_device_that_neither_torch_nor_onnxruntime_has_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    task = task_of(chain(), inputs((3, 8, 8), 2))
    with pytest.raises(RecipeError, match="inference_device"):
        next(visits(task, Gptq(inference_device="cuda:0")))


class NumpyOnTensors:
    """Stands in for the kernels where there is no GPU: the same steps in numpy."""

    def __init__(self, rows: TensorRows) -> None:
        names = ("gram", "cross", "mean", "target", "scale", "lowest", "highest", "value", "bias")
        arrays = {name: getattr(rows, name).numpy() for name in names}
        floor = None if rows.floor is None else rows.floor.numpy()
        grid = BiasGrid(*rows.bias_grid.numpy())
        self._rows = NumpyRows(RowProblem(**arrays, floor=floor, bias_grid=grid, bias_moves=rows.bias_moves))

    def advance(self, entries: np.ndarray) -> np.ndarray:
        return self._rows.advance(entries)

    def trained(self) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.from_numpy(part.copy()) for part in self._rows.trained())  # type: ignore[return-value]


STEPS = [
    AdaRound(iterations=60),
    AdaQuant(iterations=60, learning_rate=3e-3),
    AdaQuant(iterations=40, update_bias=False),
]


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
@pytest.mark.parametrize("step", STEPS, ids=["adaround", "adaquant", "adaquant-weights"])
def test_training_keeps_on_a_device_what_it_keeps_elsewhere(
    step: LayerTraining, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_training, "FusedRows", NumpyOnTensors)
    monkeypatch.setattr("quantry.tune.row_steps.row_steps", NumpyRows)
    task = task_of(network(), inputs((4, 9, 8), 6))
    rounds = isinstance(step, AdaRound)
    seen = 0
    for visit in visits(task, Gptq(inference_device=where)):
        trainer = LayerTrainer(visit, step, trains_bias=not rounds and bool(getattr(step, "update_bias", True)))
        problem = trainer.problem
        if problem.grid is None:
            continue
        exponents = (lambda number: second_term(step, number)) if isinstance(step, AdaRound) else None
        rows = rounding_rows(problem) if rounds else weight_rows(problem)
        trainings: list[Training] = [
            RowTraining(problem, rows, exponents or (lambda _: (0.0, 0.0))),
            DeviceTraining(problem, step, exponents),
        ]
        theirs, ours = (trainer._loop(training, 0) for training in trainings)
        assert theirs.values.keys() == ours.values.keys()
        assert trainings[0].before == pytest.approx(trainings[1].before, rel=1e-3)
        assert ours.before == pytest.approx(theirs.before, rel=1e-3)
        assert ours.after == pytest.approx(theirs.after, rel=0.05, abs=1e-6)
        assert ours.after <= ours.before
        seen += 1
    assert seen == 5


def kernels_run_on() -> str | None:
    """Return where the kernels can run: on a GPU, or interpreted with TRITON_INTERPRET=1."""
    if util.find_spec("triton") is None:
        return None
    if torch.cuda.is_available():
        return "cuda:0"
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else None


@pytest.mark.skipif(kernels_run_on() is None, reason="there is no GPU with triton")
@pytest.mark.parametrize("shape", [(5, 1, 9), (1, 10, 70), (1, 18, 140), (2, 3, 150)])
@pytest.mark.parametrize("rounds", [True, False], ids=["adaround", "adaquant"])
def test_kernels_and_numpy_train_alike(shape: tuple[int, int, int], rounds: bool) -> None:
    device = kernels_run_on() or ""
    problem = problem_of(shape, rounds=rounds)
    count = 45 if device != "cpu" else 5
    step = AdaRound(iterations=3 * count) if rounds else None
    fused, plain = FusedRows(tensors_of(problem, device)), NumpyRows(problem)
    for first in (0, count, 2 * count):
        entries = schedule(first, count, 0.1 if rounds else 1e-3, step)
        np.testing.assert_allclose(fused.advance(entries), plain.advance(entries), rtol=2e-3)
    for ours, other in zip(fused.trained(), plain.trained(), strict=True):
        assert np.mean(np.abs(ours.cpu().numpy() - other) < 1e-2) > 0.97


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("with_triton", [True, False], ids=["triton", "torch"])
@pytest.mark.parametrize("inference", ["cpu", "cuda:0"])
@pytest.mark.parametrize("step", STEPS, ids=["adaround", "adaquant", "adaquant-weights"])
def test_gpu_tunes_as_well_as_the_processor(
    step: LayerTraining, inference: str, with_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_triton:
        monkeypatch.setattr("quantry.tune.fused_rows.fused", lambda: None)
    task = task_of(chain(), inputs((3, 8, 8), 12))
    fresh = inputs((3, 8, 8), 8, seed=9)
    there = replace(step, device="cuda:0", inference_device=inference)
    errors = [
        output_error(task, tune(task.reference, task.model, task.plan, task.params, task.data, one), fresh)
        for one in (step, there)
    ]
    assert errors[1] <= 1.1 * errors[0]
