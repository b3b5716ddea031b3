"""Training with torch: of mini-batches, and on a GPU.

This module imports torch, so it is imported inside functions only.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quantry.execute.sample_batches import torch_device
from quantry.recipe import LayerTraining
from quantry.runtime.threads import threads_for
from quantry.tune.kept_rows import KeptRows
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.reconstruction import MiniBatches, Reconstruction, WholeData
from quantry.tune.recorded import Recorded
from quantry.tune.row_problem import HIGH, LOW, bias_grid, rounding_values
from quantry.tune.row_steps import BETAS, EPSILON
from quantry.tune.row_training import Exponents, corrected

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_TAPE_STEPS = 256
"""Steps that a tape makes before it is looked at."""


class TensorTraining(ABC):
    """Trains tensors; see `Training`.

    On a GPU, where many small operations cost more to start than to do, a step of the loss over all samples is recorded
    once and played again.

    Args:
        problem: The layer.
        step: The options.
        exponents: Of AdaRound's second term.
        whole: Whether the loss is that of all samples at once.
    """

    def __init__(self, problem: LayerProblem, step: LayerTraining, exponents: Exponents, *, whole: bool) -> None:
        self.problem, self._exponents, self._whole = problem, exponents, whole
        self.device = torch_device(step.device)
        torch.manual_seed(problem.visit.seed)
        self.reconstruction: Reconstruction
        if whole:
            self.reconstruction = WholeData(problem, self.device)
        else:
            self.reconstruction = MiniBatches(problem, step, self.device)
        grid = problem.grid
        assert grid is not None
        self.scale, self.lowest, self.highest = map(self.tensor, (grid.scale, grid.lowest, grid.highest))
        self._tape: _Tape | None = None
        self._kept = KeptRows(problem, self.judge)

    @property
    def before(self) -> float:
        """The loss of plain rounding."""
        return float(self._kept.before.sum())

    def keep(self) -> bool:
        """Judge the constants as they would be written now, keep better ones, and return whether any has moved."""
        self._kept.offer(*self.constants())
        return self._kept.moved

    def result(self) -> LayerConstants:
        """Return the best constants that were seen."""
        kept = self._kept
        if self._whole:
            return self.problem.choose(kept.weight, kept.bias)
        return self.problem.take(kept.weight, kept.bias, self.before, float(kept.best.sum()))

    @abstractmethod
    def step(self, entry: Any) -> Any:
        """Make a step.

        Args:
            entry: A row of a schedule; see `quantry.tune.row_steps`.

        Returns:
            The loss before it.
        """

    @abstractmethod
    def written(self) -> tuple[Any, Any]:
        """Return weight and bias as they would be written now."""

    @abstractmethod
    def state(self) -> tuple[Any, ...]:
        """Return the tensors that steps change."""

    def tensor(self, array: Any) -> Any:
        """Return an array on the device of the training."""
        return torch.tensor(array, device=self.device)

    def advance(self, first: int, count: int, rate: float) -> Float:
        """Make steps; return the loss before each."""
        numbers = range(first, first + count)
        entries = [(*corrected(number + 1, rate), *self._exponents(number)) for number in numbers]
        if self._whole and self.device != "cpu":
            if self._tape is None:
                self._tape = _Tape(self, self.device)
            return self._tape.play(torch.tensor(entries, device=self.device))
        with threads_for(self.problem.weight.size):
            return np.array([float(self.step(entry)) for entry in entries])

    def constants(self) -> tuple[Single, Single]:
        """Return weight and bias as they would be written now."""
        weight, bias = (part.detach().cpu().numpy() for part in self.written())
        return weight, self.problem.rounded_bias(bias)

    def judge(self, weight: Single, bias: Single) -> Float:
        """Return the loss of each row over all samples, or that of the first samples as ``[1, 1]``."""
        if self._whole:
            return self.problem.quadratic.error(weight, bias)
        return np.full((1, 1), self.reconstruction.judge(self.tensor(weight), self.tensor(bias)))


class TensorRounding(TensorTraining):
    """AdaRound: one variable for each weight."""

    def __init__(self, problem: LayerProblem, step: LayerTraining, exponents: Exponents, *, whole: bool) -> None:
        super().__init__(problem, step, exponents, whole=whole)
        self._variable, self._floor = map(self.tensor, rounding_values(problem))
        self._bias = self.tensor(problem.rounded_bias(problem.bias))
        self._adam = Adam(self._variable)

    def step(self, entry: Any) -> Any:
        """Make a step."""
        sigmoid = torch.sigmoid(self._variable)
        up = (sigmoid * (HIGH - LOW) + LOW).clamp_(0.0, 1.0)
        levels = self._floor + up
        weight = torch.clamp(levels, self.lowest, self.highest) * self.scale
        loss, slope, _ = self.reconstruction.slope(weight, self._bias)
        slope = slope * self.scale * ((levels >= self.lowest) & (levels <= self.highest))
        rate, spread, beta, strength = entry
        centered = 2.0 * up - 1.0
        # Before the second term sets in its exponent is 0, which 0 must not be raised to the power of less 1.
        exponent = beta.clamp(min=1.0) if isinstance(beta, torch.Tensor) else max(beta, 1.0)
        away = centered.abs().pow_(exponent - 1.0).mul_(centered.sign())
        slope -= away.mul_(2.0 * exponent * strength)
        slope *= sigmoid * (1.0 - sigmoid) * (HIGH - LOW) * ((up > 0.0) & (up < 1.0))
        self._adam.step(slope, rate, spread)
        return loss

    def written(self) -> tuple[Any, Any]:
        """Return the weights rounded, and the bias, which stays."""
        levels = self._floor + (self._variable >= 0)
        return torch.clamp(levels, self.lowest, self.highest) * self.scale, self._bias

    def state(self) -> tuple[Any, ...]:
        """Return the tensors that steps change."""
        return self._adam.state()


class TensorQuantizing(TensorTraining):
    """AdaQuant: the weights themselves, and the bias on request."""

    def __init__(self, problem: LayerProblem, step: LayerTraining, *, whole: bool) -> None:
        super().__init__(problem, step, lambda _: (0.0, 0.0), whole=whole)
        self._weight, self._bias = self.tensor(problem.weight), self.tensor(problem.bias)
        grid = bias_grid(problem)
        self._bias_parts = tuple(map(self.tensor, (grid.scale, grid.lowest, grid.highest)))
        self._adams = Adam(self._weight), Adam(self._bias)

    def step(self, entry: Any) -> Any:
        """Make a step."""
        levels = torch.round(self._weight / self.scale)
        rounded = torch.clamp(levels, self.lowest, self.highest) * self.scale
        loss, slope, bias_slope = self.reconstruction.slope(rounded, self._rounded_bias())
        rate, spread = entry[:2]
        self._adams[0].step(slope * ((levels >= self.lowest) & (levels <= self.highest)), rate, spread)
        if self.problem.bias_moves:
            self._adams[1].step(bias_slope, rate, spread)
        return loss

    def written(self) -> tuple[Any, Any]:
        """Return the weights rounded, and the bias."""
        levels = torch.clamp(torch.round(self._weight / self.scale), self.lowest, self.highest)
        return levels * self.scale, self._bias

    def state(self) -> tuple[Any, ...]:
        """Return the tensors that steps change."""
        return tuple(tensor for adam in self._adams for tensor in adam.state())

    def _rounded_bias(self) -> Any:
        scale, lowest, highest = self._bias_parts
        levels = torch.clamp(torch.round(self._bias / torch.where(scale > 0, scale, 1.0)), lowest, highest)
        return torch.where(scale > 0, levels * scale, self._bias).float()


class Adam:
    """Kingma and Ba (https://arxiv.org/abs/1412.6980), for one tensor, in place.

    Args:
        parameter: What is trained.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self._first, self._second = torch.zeros_like(parameter), torch.zeros_like(parameter)

    def state(self) -> tuple[Any, ...]:
        """Return the tensors that a step changes."""
        return self._parameter, self._first, self._second

    def step(self, gradient: Any, rate: Any, spread: Any) -> None:
        """Move against a gradient, with learning rate and second moment corrected for the number of steps."""
        self._first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        self._second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        self._parameter -= self._first * rate / (self._second * spread).sqrt_().add_(EPSILON)


class _Tape:
    """A step, recorded on a GPU. What it reads and writes has a fixed place, and it counts steps itself."""

    def __init__(self, training: TensorTraining, device: str) -> None:
        self._schedule = torch.zeros(_TAPE_STEPS, 4, device=device)
        self._losses = torch.zeros(_TAPE_STEPS, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

        def step() -> None:
            entry = self._schedule.index_select(0, self._position)[0]
            self._losses.index_copy_(0, self._position, training.step(entry)[None])
            self._position.add_(1)

        before = [tensor.clone() for tensor in training.state()]
        # Libraries set themselves up in a first step, which cannot be recorded and is undone.
        step()
        for tensor, old in zip(training.state(), before, strict=True):
            tensor.copy_(old)
        self._step = Recorded(step, device)

    def play(self, schedule: Any) -> Float:
        """Make a step for each row of a schedule; return the loss before each."""
        losses = []
        for part in torch.split(schedule, _TAPE_STEPS):
            self._schedule[: len(part)] = part
            self._position.zero_()
            self._step.play(len(part))
            losses.append(self._losses[: len(part)].double().cpu().numpy())
        return np.concatenate(losses)
