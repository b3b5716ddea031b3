"""Training without labels, for a high effort: what is tried, and how long it may take."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import util
from typing import TypeVar

from quantry.auto.candidates import Candidate
from quantry.auto.trials import Stopwatch
from quantry.quantization import QuantizationResult
from quantry.recipe import Brecq, Distill, GraphTraining, Recipe, TuneOptions
from quantry.runtime.devices import best_device
from quantry.runtime.threads import one_torch_thread
from quantry.tune import tune

# Iterations of block reconstruction and of distillation, as far as time allows; fewer than the last change little.
_LADDER = (1000, 500, 200, 100)
_MOST_OF_BLOCKS = 200

# Shares of all time for one training. It runs twice, because the final model is trained on all samples.
_BLOCKS_SHARE, _WHOLE_SHARE = 0.15, 0.25

# Advancing from block to block costs about as much again as training the blocks.
_BLOCKS_FACTOR = 2.0

# Larger rates undo what GPTQ found: with 2e-4 and more, three models of three were worse on images not trained on.
_RATE = 1e-4

_PROBED = (2, 6)


@dataclass(frozen=True)
class Trainings:
    """The trainings that fit into the time.

    Attributes:
        blocks: Block reconstruction; None if there is no time for it.
        whole: Distillation; None if there is no time for it.
    """

    blocks: Brecq | None
    whole: Distill | None

    def candidates(self) -> Iterator[Candidate]:
        """Yield training on top of a recipe: block reconstruction, then distillation of the whole model."""
        for label, step in (("block reconstruction", self.blocks), ("distillation", self.whole)):
            if step is not None:
                yield Candidate(label, partial(_with_training, step=step))

    @property
    def skipped(self) -> tuple[str, ...]:
        """What there is no time for."""
        pairs = (("block reconstruction", self.blocks), ("distillation", self.whole))
        return tuple(label for label, step in pairs if step is None)


def affordable_trainings(result: QuantizationResult, seconds: float, samples: int) -> Trainings:
    """Return the trainings that fit into the time, by the time of a few iterations on this machine.

    The number of iterations is one of a few, so that a run that is interrupted and started again finds what it stored.

    Args:
        result: A quantized model.
        seconds: CPU time of everything.
        samples: Number of samples that are evaluated during training.

    Raises:
        QuantryError: The model cannot be trained.
    """
    device = best_device()
    blocks = Brecq(device=device, learning_rate=_RATE)
    # The learning rate is small, so a few hundred iterations are needed; the best state on held-out samples is kept.
    whole = Distill(device=device, held_out=0.2, train_scales=False, learning_rate=_RATE)
    each, fixed = _times(result, whole)
    # A state is evaluated ten times, without gradients.
    fixed += whole.evaluations * samples * whole.held_out / whole.batch_size * each / 3
    return Trainings(
        _within(blocks, _BLOCKS_SHARE * seconds / _BLOCKS_FACTOR - fixed, each, _MOST_OF_BLOCKS),
        _within(whole, _WHOLE_SHARE * seconds - fixed, each, _LADDER[0]),
    )


def _with_training(recipe: Recipe, step: Brecq | Distill) -> Recipe:
    if any(isinstance(earlier, type(step)) for earlier in recipe.tune.steps):
        return recipe
    return replace(recipe, tune=TuneOptions((*recipe.tune.steps, step)))


def can_train() -> bool:
    """Return whether torch is installed."""
    return util.find_spec("torch") is not None


_Step = TypeVar("_Step", bound=GraphTraining)


def _within(step: _Step, seconds: float, each: float, most: int) -> _Step | None:
    fits = [count for count in _LADDER if count <= most and count * each <= seconds]
    return replace(step, iterations=fits[0]) if fits else None


def _times(result: QuantizationResult, step: Distill) -> tuple[float, float]:
    """Return the time of one iteration and of everything around the iterations, measured after a warm-up."""
    stages = result.stages
    model, data = stages.equalized.value, result.evaluation_data.take(step.batch_size)
    taken = []
    with one_torch_thread():
        for count in (_PROBED[0], *_PROBED):
            watch = Stopwatch()
            tune(model, model, stages.plan.value, stages.params.value, data, replace(step, iterations=count))
            taken.append(watch.seconds)
    each = max(taken[2] - taken[1], 1e-4) / (_PROBED[1] - _PROBED[0])
    return each, max(taken[1] - _PROBED[0] * each, 0.0)
