"""The GPU code paths, run with torch on the CPU where there is no GPU: activations, quadratic forms and training."""

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
from quantry.execute import activation_stream
from quantry.execute.torch_stream import TensorSamples
from quantry.recipe import AdaQuant, AdaRound, DataType, Gptq, LayerTraining, LayerTuning, PlanOptions, TensorSpec
from quantry.tune import TuneTask, tune
from quantry.tune.adaround_and_adaquant import train
from quantry.tune.gpu_rows import TorchRows, TritonRows, gpu_backend, loader, quadratic_slope
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layers import find_layers
from quantry.tune.layerwise import LayerVisit, LayerWalker
from quantry.tune.quadratic_form import gather, joined
from quantry.tune.row_backends import NumpyRows, cpu_backend
from quantry.tune.row_problem import BiasGrid, RowProblem

torch.set_num_threads(1)

OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization")


def visits(task: TuneTask, options: LayerTuning) -> Iterator[LayerVisit]:
    layers, _ = find_layers(task.model.model, task.plan, OPERATORS)
    yield from LayerWalker(task, layers, options).visits("test")


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_stream, "gpu_of", lambda device, models: "cpu" if device != "cpu" else None)


TYPES = [DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16, DataType.FLOAT16]


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("activation", TYPES)
def test_torch_gives_layers_the_inputs_that_onnxruntime_gives(activation: DataType) -> None:
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
def test_quadratic_form_equals_the_one_of_numpy() -> None:
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
def test_float_inputs_have_the_requested_share() -> None:
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


def test_samples_are_joined_only_if_the_result_is_the_same() -> None:
    joined = task_of(chain(), inputs((3, 8, 8), 6))
    assert [len(chunk) for chunk in TensorSamples(joined.data, joined.model.model, "cpu").chunks] == [6]
    shapes = {"wa": (4, 3, 1, 1), "ba": (4,), "wb": (4, 4, 1, 1), "bb": (4,)}
    mixing = task_of(build(MIXING, shapes), inputs((3, 8, 8), 4))
    assert [len(chunk) for chunk in TensorSamples(mixing.data, mixing.model.model, "cpu").chunks] == [1] * 4


def test_samples_of_another_size_are_in_another_batch() -> None:
    samples = [*inputs((3, 8, 8), 3), *inputs((3, 6, 8), 2), *inputs((3, 8, 8), 1)]
    task = task_of(build(ANY_SIZE, {"wa": (4, 3, 1, 1), "ba": (4,)}), samples)
    assert [len(chunk) for chunk in TensorSamples(task.data, task.model.model, "cpu").chunks] == [3, 2, 1]


def test_device_that_neither_torch_nor_onnxruntime_has_raises() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    task = task_of(chain(), inputs((3, 8, 8), 2))
    with pytest.raises(RecipeError, match="inference_device"):
        next(visits(task, Gptq(inference_device="cuda:0")))


STEPS = [
    AdaRound(iterations=60),
    AdaQuant(iterations=60, learning_rate=3e-3),
    AdaQuant(iterations=40, update_bias=False),
]


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
@pytest.mark.parametrize("step", STEPS, ids=["adaround", "adaquant", "adaquant-weights"])
def test_gpu_backend_keeps_the_rows_that_the_cpu_backend_keeps(
    step: AdaRound | AdaQuant, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantry.tune.row_backends.row_steps", NumpyRows)
    task = task_of(network(), inputs((4, 9, 8), 6))
    rounds = isinstance(step, AdaRound)
    alike = []
    for visit in visits(task, Gptq(inference_device=where)):
        problem = LayerProblem(visit, trains_bias=not rounds and bool(getattr(step, "update_bias", True)), trained=True)
        if problem.grid is None:
            continue
        backends = cpu_backend(problem, rounds=rounds), gpu_backend(problem, "cpu", rounds=rounds)
        theirs, ours = (train(problem, step, backend) for backend in backends)
        assert theirs.values.keys() == ours.values.keys()
        assert ours.before == pytest.approx(theirs.before, rel=1e-3)
        assert ours.after <= ours.before
        alike.append(ours.after == pytest.approx(theirs.after, rel=0.05, abs=1e-6))
    assert len(alike) == 5
    # A weight at the border between two integers may end on either side, which matters to one layer of 8 columns.
    assert sum(alike) >= 4


def tensors_of(rows: RowProblem, device: str) -> RowProblem:
    load = loader(device)
    grid = BiasGrid(*(load(getattr(rows.bias_grid, name)) for name in ("scale", "lowest", "highest")))
    arrays = {name: load(array) for name, array in vars(rows).items() if isinstance(array, np.ndarray)}
    return replace(rows, bias_grid=grid, **arrays)


@pytest.mark.parametrize("shape", [(5, 1, 9), (1, 10, 70), (2, 3, 150)], ids=str)
@pytest.mark.parametrize("rounds", [True, False], ids=["adaround", "adaquant"])
def test_torch_and_numpy_train_alike(shape: tuple[int, int, int], rounds: bool) -> None:
    problem = problem_of(shape, rounds=rounds)
    if rounds:
        # AdaRound's quadratic form contains the bias, so that the mean error is zero.
        none = BiasGrid(*(np.zeros_like(problem.bias_grid.scale) for _ in range(3)))
        problem = replace(problem, bias=problem.target, bias_grid=none)
    rows = tensors_of(problem, "cpu")
    ours, theirs = TorchRows(rows, quadratic_slope(rows)), NumpyRows(problem)
    entries = schedule(0, 40, 0.1 if rounds else 1e-3, AdaRound(iterations=40) if rounds else None)
    np.testing.assert_allclose(ours.advance(entries), theirs.advance(entries), rtol=2e-3)
    for left, right in zip(ours.trained(), theirs.trained(), strict=True):
        assert np.mean(np.abs(left.numpy() - right) < 1e-2) > 0.97
    for left, right in zip(ours.written(), theirs.written(), strict=True):
        assert np.mean(np.abs(left.numpy() - right) < 1e-2) > 0.97


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
def test_triton_kernels_and_numpy_train_alike(shape: tuple[int, int, int], rounds: bool) -> None:
    device = kernels_run_on() or ""
    problem = problem_of(shape, rounds=rounds)
    count = 45 if device != "cpu" else 5
    step = AdaRound(iterations=3 * count) if rounds else None
    fused, plain = TritonRows(tensors_of(problem, device)), NumpyRows(problem)
    for first in (0, count, 2 * count):
        entries = schedule(first, count, 0.1 if rounds else 1e-3, step)
        np.testing.assert_allclose(fused.advance(entries), plain.advance(entries), rtol=2e-3)
    for ours, other in zip(fused.trained(), plain.trained(), strict=True):
        # A weight near the border between its two sides may go either way when sums are added in another order.
        assert np.mean(np.abs(ours.cpu().numpy() - other) < 1e-2) > 0.93


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("with_triton", [True, False], ids=["triton", "torch"])
@pytest.mark.parametrize("inference", ["cpu", "cuda:0"])
@pytest.mark.parametrize("step", STEPS, ids=["adaround", "adaquant", "adaquant-weights"])
def test_gpu_tunes_as_well_as_the_cpu(
    step: LayerTraining, inference: str, with_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_triton:
        monkeypatch.setattr("quantry.tune.gpu_rows.triton_kernels", lambda: None)
    task = task_of(chain(), inputs((3, 8, 8), 12))
    fresh = inputs((3, 8, 8), 8, seed=9)
    there = replace(step, device="cuda:0", inference_device=inference)
    errors = [
        output_error(task, tune(task.reference, task.model, task.plan, task.params, task.data, one), fresh)
        for one in (step, there)
    ]
    assert errors[1] <= 1.1 * errors[0]
