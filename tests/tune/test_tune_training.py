"""AdaRound, AdaQuant, Brecq, Tqt and Distill against plain rounding; their options."""

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from test_tune_gptq import output_error
from tune_models import chain, inputs, network, task_of

from quantry.errors import MissingExtraError, RecipeError
from quantry.memo import Memo, MemoryStore
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    Brecq,
    DataType,
    Distill,
    DistillLoss,
    LayerTraining,
    PlanOptions,
    PowerOfTwoScale,
    TensorSpec,
    Tqt,
    TuneStep,
)
from quantry.tune import Tuned, TuneTask, tune
from quantry.tune.blockwise import cut_into_blocks
from quantry.tune.gpu_rows import Slope, loader, quadratic_slope
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layers import find_layers
from quantry.tune.layerwise import LayerWalker
from quantry.tune.mini_batches import MiniBatches
from quantry.tune.row_problem import row_problem

POWER = TensorSpec(DataType.INT4, scale=PowerOfTwoScale())
SHIFTS = PlanOptions(TensorSpec(DataType.INT8, scale=PowerOfTwoScale()), POWER)
SHAPE = (3, 8, 8)


torch.set_num_threads(1)


def step_of(task: TuneTask, step: TuneStep) -> Tuned:
    return tune(task.reference, task.model, task.plan, task.params, task.data, step)


@pytest.fixture(scope="module")
def task() -> TuneTask:
    return task_of(chain(), inputs(SHAPE, 12))


STEPS = {
    "adaround": AdaRound(iterations=150),
    "adaround-batches": AdaRound(iterations=60, batch_size=4, whole_data=False, output_pair=True),
    "adaround-mixed": AdaRound(iterations=150, quantized_inputs=0.5, early_stop=True, samples=10),
    "adaquant": AdaQuant(iterations=150, learning_rate=3e-3),
    "adaquant-batches": AdaQuant(iterations=80, learning_rate=1e-3, batch_size=6, batches=2, whole_data=False),
    "brecq": Brecq(iterations=50, batch_size=4, layers=2, learning_rate=1e-3),
    "tqt": Tqt(iterations=50, batch_size=4, layers=2, learning_rate=1e-3, scale_learning_rate=1e-3),
    "distill": Distill(iterations=50, batch_size=4, learning_rate=1e-3),
    "distill-scales": Distill(
        iterations=50, batch_size=4, learning_rate=1e-3, scale_learning_rate=1e-3, train_scales=True, held_out=0.25
    ),
    "distill-l1": Distill(iterations=50, batch_size=4, learning_rate=1e-3, loss=DistillLoss.L1),
}


@pytest.mark.parametrize("name", STEPS)
def test_outputs_are_closer_to_the_float_model_on_new_samples(name: str, task: TuneTask) -> None:
    tuned = step_of(task, STEPS[name])
    fresh = inputs(SHAPE, 8, seed=9)
    assert output_error(task, tuned, fresh) < output_error(task, None, fresh)


@pytest.mark.parametrize(
    "step", [AdaRound(iterations=40), Brecq(iterations=10), Tqt(iterations=10)], ids=["adaround", "brecq", "tqt"]
)
def test_all_kinds_of_layers_can_be_trained(step: TuneStep) -> None:
    task = task_of(network(), inputs((4, 9, 8), 6))
    tuned = step_of(task, step)
    assert {"wa", "wb", "wc", "wh", "wy"} <= set(tuned.weights)


def test_layer_is_never_worse_than_plain_rounding_however_bad_the_training(task: TuneTask) -> None:
    tuned = step_of(task, AdaQuant(iterations=5, learning_rate=100.0))
    fresh = inputs(SHAPE, 12)
    assert output_error(task, tuned, fresh) <= 1.001 * output_error(task, None, fresh)


def test_rounding_moves_weights_by_less_than_one_step(task: TuneTask) -> None:
    tuned = step_of(task, AdaRound(iterations=60))
    for name in ("wa", "wb", "wc"):
        before = task.model.model.graph.initializers[name].const_value
        assert before is not None
        params = task.params.tensors[name]
        scale = params.scale.reshape(-1, 1, 1, 1)
        inside = np.clip(before.numpy(), params.lowest * scale, params.highest * scale)
        assert (np.abs(tuned.weights[name] - inside) <= scale * 1.001).all()
    assert not {"ba", "bb", "bc"} & set(tuned.weights)


TRAINED_SCALES = (
    Tqt(iterations=40, scale_learning_rate=0.1),
    Distill(iterations=40, train_scales=True, scale_learning_rate=0.1),
)


@pytest.mark.parametrize("step", TRAINED_SCALES, ids=["tqt", "distill"])
def test_trained_scales_stay_powers_of_two_and_shared_ones_stay_shared(step: TuneStep) -> None:
    task = task_of(chain(), inputs(SHAPE, 6), SHIFTS)
    tuned = step_of(task, step)
    for name, params in tuned.params.tensors.items():
        if name not in task.plan.biases:
            mantissa, _ = np.frexp(params.scale)
            assert (mantissa == 0.5).all(), name
    for name in task.plan.activations:
        assert tuned.params.tensors[name].scale == tuned.params.tensors[task.plan.root(name)].scale


def whole_data(problem: LayerProblem) -> Slope:
    return quadratic_slope(
        row_problem(problem, problem.quadratic.converted(torch.from_numpy), rounds=False, load=loader("cpu"))
    )


def test_hand_written_gradients_equal_those_of_autograd(task: TuneTask) -> None:
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    for visit in LayerWalker(task, layers, AdaRound()).visits("test"):
        problem = LayerProblem(visit, trains_bias=True)
        form = problem.quadratic
        weight = torch.tensor(problem.weight, dtype=torch.float64, requires_grad=True)
        bias = torch.tensor(problem.bias, dtype=torch.float64, requires_grad=True)
        gram, cross, mean, goal = (
            torch.from_numpy(part) for part in (form.gram, form.cross, form.column_mean, form.target_mean)
        )
        shift = torch.einsum("grk,gk->gr", weight, mean) + bias - goal
        loss = (weight @ gram * weight).sum() - 2 * (weight * cross.transpose(1, 2)).sum() + shift.square().sum()
        loss.backward()
        _, by_weight, by_bias = whole_data(problem)(weight.detach().float(), bias.detach().float())
        np.testing.assert_allclose(by_weight, weight.grad, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(by_bias, bias.grad, rtol=1e-3, atol=1e-4)


def test_whole_data_and_mini_batches_of_all_samples_have_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    # Mini-batches aim at the float model's outputs as they are.
    monkeypatch.setattr("quantry.tune.layer_problem.compensation_share", lambda *_: 1.0)
    samples = inputs(SHAPE, 4)
    task = task_of(chain(), samples)
    step = AdaRound(batch_size=4, whole_data=False, operators=("Conv",))
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    last = list(_kept(LayerWalker(task, layers[-1:], step)))
    assert last


def _kept(walker: LayerWalker):  # type: ignore[no-untyped-def]
    for visit in walker.visits("test"):
        # The last layer has no activation function after it, so both losses are the same.
        problem = LayerProblem(visit, trains_bias=True)
        weight, bias = torch.tensor(problem.plain()), torch.tensor(problem.bias)
        loss, *slopes = whole_data(problem)(weight, bias)
        whole = loss + float(problem.quadratic.power.sum()), *slopes
        batch = MiniBatches(problem, walker.options, "cpu").slope(weight, bias)  # type: ignore[arg-type]
        for ours, theirs in zip(whole, batch, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-3, atol=1e-4)
        yield visit


def test_learning_rate_is_adjusted_for_layers_with_a_large_error(task: TuneTask) -> None:
    still = AdaQuant(iterations=20, learning_rate=1e-12, learning_rate_adjust=(1e9, 1e-2))
    moved = AdaQuant(iterations=20, learning_rate=1e-12, learning_rate_adjust=(0.0, 1e-2))
    before = step_of(task, AdaQuant(iterations=20, learning_rate=1e-12))
    assert all(np.array_equal(step_of(task, still).weights[name], value) for name, value in before.weights.items())
    assert not all(np.array_equal(step_of(task, moved).weights[name], value) for name, value in before.weights.items())


def test_loss_is_logged_with_the_requested_period(task: TuneTask, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "quantry.tune"):
        step_of(task, AdaRound(iterations=20, log_period=5))
    assert sum("iteration" in record.message for record in caplog.records) == 3 * 4


def test_early_stop_ends_a_layer_that_does_not_improve(task: TuneTask, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "quantry.tune"):
        step_of(task, AdaQuant(iterations=200, learning_rate=1e-12, early_stop=True, log_period=1))
    assert sum("iteration" in record.message for record in caplog.records) < 3 * 200


def test_interrupted_block_training_resumes_after_the_last_finished_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantry.tune import blockwise

    task = task_of(chain(), inputs(SHAPE, 4))
    arguments = (task.reference, task.model, task.plan, task.params, task.data, Brecq(iterations=4, layers=1))
    memo = Memo(MemoryStore())
    calls: list[int] = []
    original = blockwise.fit

    def failing(*rest):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*rest)

    monkeypatch.setattr(blockwise, "fit", failing)
    with pytest.raises(KeyboardInterrupt):
        memo.run(tune, *arguments)
    resumed = memo.run(tune, *arguments).value
    assert len(calls) == 4
    assert resumed.to_blob() == tune(*arguments).to_blob()


def test_blocks_hold_all_nodes_and_few_layers(task: TuneTask) -> None:
    nodes = list(task.model.model.graph)
    blocks = cut_into_blocks(nodes, ("y",), 2)
    assert [node for block in blocks for node in block.nodes] == nodes
    assert all(1 <= block.layers <= 2 for block in blocks)
    # The cut is after the Add, where one tensor crosses, and not where two do.
    assert len(blocks[0].passed) == 1
    assert blocks[-1].outputs == ("y",)


def test_missing_device_raises(task: TuneTask) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RecipeError, match="cuda:0"):
        step_of(task, Distill(device="cuda:0"))
    with pytest.raises(RecipeError, match="inference_device"):
        step_of(task, AdaRound(inference_device="cuda:0"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaRound(device="gpu"),
        lambda: AdaRound(beta_range=(1.0,)),
        lambda: AdaQuant(operators=("Conf",)),
        lambda: AdaQuant(memory=3),
        lambda: LayerTraining(iterations=0),
        lambda: Distill(train_weights=False, train_bias=False),
        lambda: Distill(held_out=2.0),
    ],
)
def test_invalid_options_raise(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RecipeError):
        make()


def test_step_that_needs_torch_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch, task: TuneTask) -> None:
    from quantry.tune import stage

    monkeypatch.setattr(stage.util, "find_spec", lambda name: None)
    for step in (Distill(), AdaRound(whole_data=False), AdaQuant(output_pair=True)):
        with pytest.raises(MissingExtraError, match=r"quantry\[torch\]"):
            step_of(task, step)


@pytest.mark.parametrize("name", ["Gptq", "AdaRound", "AdaQuant"])
def test_step_that_needs_no_mini_batches_works_without_torch(name: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
sys.path.insert(0, "tests/tune")
from tune_models import chain, inputs, task_of
from quantry.recipe import {name}
from quantry.tune import tune
task = task_of(chain(), inputs((3, 8, 8), 3))
tuned = tune(task.reference, task.model, task.plan, task.params, task.data, {name}())
sys.stdout.write(str(tuned.notes[0]))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "3 of 3 layers" in output
