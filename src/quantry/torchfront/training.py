"""A short training loop, and the parts of it for users with a loop of their own: schedule, average, recorded loss."""

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from quantry.errors import DataError, ModelError, RecipeError, known_keywords
from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.execute.training_loop import TrainingLoop
from quantry.numerics.torch_quantizer import Gradient
from quantry.recipe.checked import Checked
from quantry.torchfront.distillation import DistillationLoss, float_teacher
from quantry.torchfront.graph_capture import call_error
from quantry.torchfront.held_out import CHECKS, Batches, HeldOut, one_number, output_errors, single_samples
from quantry.torchfront.quantized_module import QuantizedModule, require_quantized
from quantry.torchfront.switches import freeze_batch_norm, freeze_observers, learn_scales, start_observers

Loss = Callable[[Any, Any], Tensor]
"""From the module and a batch of the user's loader to the loss."""

_SMALLEST = 1e-3
"""Typical size assumed for weights that are about zero, such as new biases: they would otherwise never move."""

_TINY = 1e-30
"""Smallest scale in the logarithm of its learning rate."""

_MOST_SAMPLES = 64
"""Held-out samples that are compared one by one."""

_FLOOR = 1 / 16
"""A learned scale may shrink to this fraction of its start. It must stay positive."""


@dataclass(frozen=True)
class QatSchedule(Checked):
    """Switches observers and batch statistics by step.

    Attributes:
        observe_until: Scales follow the data before this step; 0 means never.
        batch_norm_until: Batch statistics are used and updated before this step; 0 means never, None always.

    Example:
        >>> schedule = QatSchedule(observe_until=200, batch_norm_until=1000)
        >>> for step, (images, labels) in enumerate(loader):  # doctest: +SKIP
        ...     schedule.apply(model, step)
    """

    observe_until: int = 0
    batch_norm_until: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("observe_until", "batch_norm_until"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise RecipeError(f"QatSchedule.{name} must not be negative, got {value!r}")

    def apply(self, model: nn.Module, step: int) -> None:
        """Set the switches for a step; call it at every step, most calls do nothing."""
        if step in (0, self.observe_until):
            (start_observers if step < self.observe_until else freeze_observers)(model)
        if step in (0, self.batch_norm_until):
            frozen = self.batch_norm_until is not None and step >= self.batch_norm_until
            freeze_batch_norm(model, frozen=frozen)


@dataclass(frozen=True)
class QatOptions(Checked):
    """How `qat` trains.

    Attributes:
        steps: Number of batches; a shorter loader is repeated.
        learning_rate: Peak learning rate of weights, relative to the typical weight of each tensor; follows a cosine.
        scale_rate: Learning rate of learned scales: of the logarithm of power-of-two scales, relative to the scale for
            others. None keeps the calibrated scales.
        decay: Decay of the moving average that is returned; None returns the weights of the last step.
        schedule: When observers and batch statistics are frozen.
        bfloat16: Run the forward pass in mixed precision.
        clip: Largest norm of the gradient.
        record: On a GPU, record the kernels of the first step and replay them, as `RecordedLoss` does. For small models
            it is several times as fast.
    """

    steps: int = 1000
    learning_rate: float = 4e-4
    scale_rate: float | None = 1e-3
    decay: float | None = 0.99
    schedule: QatSchedule = QatSchedule()
    bfloat16: bool = False
    clip: float = 10.0
    record: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "learning_rate", "scale_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RecipeError(f"QatOptions.{name} must be positive, got {value!r}")
        if self.decay is not None and not 0 <= self.decay < 1:
            raise RecipeError(f"QatOptions.decay must be in [0, 1) or None, got {self.decay!r}")
        if self.record and (self.schedule.observe_until or self.schedule.batch_norm_until):
            raise RecipeError(f"QatOptions.record needs a schedule that switches nothing during training, got {self}")


_OTHER_NAMES = {"model": "module", "data": "batches", "dataloader": "batches", "loader": "batches", "criterion": "loss"}


@known_keywords("qat", _OTHER_NAMES)
def qat(
    module: QuantizedModule,
    batches: Iterable[Any],
    loss: Loss | None = None,
    options: QatOptions | None = None,
    *,
    held_out: Iterable[Any] | None = None,
    report: Callable[[int, float], None] | None = None,
) -> QuantizedModule:
    """Train a quantized module; the result is never worse on held-out batches than the start.

    Args:
        module: The result of quantization after training; it is trained in place.
        batches: A DataLoader, or any iterable that can be read repeatedly.
        loss: From module and batch to a loss. None compares with the float model and needs no labels; a batch is then a
            tensor, a tuple that starts with the module's inputs, or a dict of them by name.
        options: How to train.
        held_out: Batches that are not trained on and decide which step is returned. None holds out one batch in five,
            at most eight; of a loader that shuffles, their samples. An empty list returns the last step unchecked.
        report: Called with step and loss after each step.

    Returns:
        The trained module in evaluation mode: the moving average unless `decay` is None. Its `gain` says what training
        gained on the held-out batches. An earlier step is returned if it is clearly better there than the last one. If
        no step is clearly better than the start, the module is as it was before.

    Raises:
        DataError: There are no batches, they do not fit the module, or the loss is not finite.
        ModelError: The module is not quantized, is frozen, or has nothing to train.
        RecipeError: The loss cannot be called with module and batch.
    """
    options = options or QatOptions()
    _check(module, loss, options)
    data = Batches(batches, held_out)
    learned = learn_scales(module) if options.scale_rate is not None else []
    training_loss = loss or _label_free(module)
    training_loss = RecordedLoss(training_loss) if options.record else training_loss
    average = None if options.decay is None else MovingAverage(module, options.decay)
    if average is not None and not options.schedule.observe_until:
        average.keep_pairs(module)  # observers replace buffers at every step
    comparison = _held_out(module, loss, data.held_out)
    checks = {round(number * options.steps / CHECKS) for number in range(1, CHECKS + 1)} if data.held_out else set()
    if checks:
        comparison.check(module, 0)
    for step, value in enumerate(_steps(module, data, training_loss, learned, options)):
        # Reading the loss waits for a GPU, so check it there only if it is reported anyway, and at the ends.
        if report is not None or step in (0, options.steps - 1):
            _check_loss(value, step)
        if average is not None:
            average.update(module)
        if report is not None:
            report(step, float(value.detach()))
        if step + 1 in checks:
            comparison.check(module if average is None else average.module, step + 1)
    if checks:
        module.add_gain(comparison.finish(module, trained_on=data.trained_on))
    elif average is not None:
        module.load_state_dict(average.module.state_dict())
    module.eval()
    return module


def _steps(
    module: QuantizedModule, data: Batches, loss: Loss, learned: list[Any], options: QatOptions
) -> Iterator[Tensor]:
    """Train step by step and yield the loss of each."""
    keep_positive = _floored(_plain_scales(module))
    trained = list(module.parameters())
    device = trained[0].device
    rates = _rates(module, learned, options)
    loop = TrainingLoop(rates, lambda step: _rate_factor(step, options.steps), (options.clip, trained))
    module.train()
    for step, batch in enumerate(itertools.islice(data, options.steps)):
        options.schedule.apply(module, step)
        # autocast's cache of cast weights would be stale when a recorded step is replayed.
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bfloat16, cache_enabled=not options.record):
            value = loss(module, _moved(batch, device))
        if device.type == "cpu":
            _check_loss(value, step)  # before it reaches the weights
        loop.step(step, [value])
        keep_positive()
        yield value


class MovingAverage:
    """An exponential moving average of a model's weights, which often gives the better model to export.

    Attributes:
        decay: Weight of the old average after the warm-up.
        warm_up: Number of steps during which the average follows faster.
    """

    @known_keywords("MovingAverage")
    def __init__(self, model: nn.Module, decay: float = 0.999, warm_up: int = 100) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"an averaged model must be a torch module, got {type(model).__name__}; in MovingAverage")
        if not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise RecipeError(f"MovingAverage.decay must be in [0, 1), got {decay!r}")
        self.decay, self.warm_up = decay, warm_up
        self._module = copy.deepcopy(model)
        self._module.eval()
        self._module.requires_grad_(requires_grad=False)
        self._steps = 0
        self._pairs: tuple[list[Tensor], ...] | None = None
        self._pending: tuple[list[Tensor], list[Tensor]] = ([], [])

    @property
    def module(self) -> nn.Module:
        """The averaged model in evaluation mode. Buffers such as running statistics are copied, not averaged."""
        # Buffers are copied here, not in `update`: a model has hundreds of scales, and copying them at every step took
        # longer than training a small model on a GPU.
        ours, theirs = self._pending
        if ours:
            with torch.no_grad():
                torch._foreach_copy_(ours, theirs)
        self._pending = ([], [])
        return self._module

    def keep_pairs(self, model: nn.Module) -> None:
        """Look up corresponding tensors once, for a model whose parameters stay the same objects from now on.

        For a model with many parts, looking them up at every step takes longer than averaging.
        """
        self._pairs = self._found(model)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update(self, model: nn.Module) -> None:
        """Add the weights of one step."""
        self._steps += 1
        decay = self.decay * (1 - math.exp(-self._steps / max(self.warm_up, 1)))
        ours, theirs, our_buffers, their_buffers = self._pairs or self._found(model)
        torch._foreach_lerp_(ours, theirs, 1 - decay)
        self._pending = (our_buffers, their_buffers)

    def _found(self, model: nn.Module) -> tuple[list[Tensor], ...]:
        theirs = [parameter.detach() for parameter in model.parameters()]
        ours = dict(self._module.named_buffers())
        for name, buffer in model.named_buffers():
            if name not in ours:  # observers add a buffer when they start
                holder, _, leaf = name.rpartition(".")
                setattr(self._module.get_submodule(holder), leaf, buffer.detach().clone())
        return list(self._module.parameters()), theirs, list(self._module.buffers()), list(model.buffers())


class RecordedLoss:
    """A loss on a GPU that records its first call, forward and backward, as a CUDA graph and replays it.

    Launching many small kernels takes longer than running them. The module's switches must not change after the first
    call, and the loss must not read numbers back from the device. Batches of another shape than the first, and those on
    a CPU, are computed normally.

    Attributes:
        loss: The loss that is recorded.

    Example:
        >>> loss = RecordedLoss(lambda model, batch: criterion(model(batch[0]), batch[1]))  # doctest: +SKIP
        >>> loss(model, (images, labels)).backward()  # doctest: +SKIP
    """

    @known_keywords("RecordedLoss")
    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._step: Any = None
        self._kind: Any = None

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        leaves, form = tree_flatten(batch)
        if not all(torch.is_tensor(leaf) and leaf.is_cuda for leaf in leaves):
            return self.loss(module, batch)
        kind = (form, [(leaf.shape, leaf.dtype) for leaf in leaves], id(module))
        if self._step is None:
            plain = _Step(module, self.loss, form).train()
            self._step = torch.cuda.make_graphed_callables(plain, tuple(leaves), allow_unused_input=True)
            self._kind = kind
        if kind != self._kind:
            return self.loss(module, batch)
        value: Tensor = self._step(*leaves)
        return value


class _Step(nn.Module):  # type: ignore[misc]
    """The loss as a module, so that torch also records the gradients of its parameters."""

    def __init__(self, module: nn.Module, loss: Loss, form: Any) -> None:
        super().__init__()
        self.module = module
        self._loss, self._form = loss, form

    def forward(self, *leaves: Tensor) -> Tensor:
        return self._loss(self.module, tree_unflatten(leaves, self._form))


# -- checks ------------------------------------------------------------------------------------------------------------


def _check(module: QuantizedModule, loss: Loss | None, options: QatOptions) -> None:
    require_quantized(module, "qat")
    if not isinstance(options, QatOptions):
        raise RecipeError(f"options must be QatOptions(...), got {type(options).__name__}; in qat")
    if isinstance(loss, DistillationLoss | torch.nn.modules.loss._Loss):
        raise RecipeError(
            f"a loss must be a function of module and batch, got {type(loss).__name__}, which has other arguments; "
            "write for example loss=lambda module, batch: criterion(module(batch[0]), batch[1]); in qat"
        )
    try:
        if loss is not None:
            inspect.signature(loss).bind(module, None)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"a loss must be a function of module and batch, got {loss!r}: {error}; write for example "
            "loss=lambda module, batch: criterion(module(batch[0]), batch[1]); in qat"
        ) from error
    if module.is_frozen or not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            "a module must have weights to train, got one that is frozen; train the result of quantize_model, and "
            "freeze it afterwards; in qat"
        )


def _check_loss(value: Any, step: int) -> None:
    number = one_number(value)
    if not math.isfinite(number):
        raise DataError(
            f"a loss must be a finite number, got {number} at step {step}: the batch may contain NaN, "
            "or the learning rate is too high; in qat"
        )


# -- learning rates ----------------------------------------------------------------------------------------------------


def _rates(module: QuantizedModule, learned: list[Any], options: QatOptions) -> list[tuple[list[Tensor], float]]:
    """Return the peak learning rates: those of weights are relative to their size, those of scales as options say."""
    learned_ids = {id(parameter) for parameter in learned}
    groups: dict[float, list[Tensor]] = {}
    for weight in module.parameters():
        if weight.requires_grad and id(weight) not in learned_ids:
            # Rounded to a power of two, so that all tensors form few groups, which means few kernels.
            typical = max(float(weight.detach().square().mean().sqrt()), _SMALLEST)
            groups.setdefault(2.0 ** round(math.log2(typical)), []).append(weight)
    rates = [(weights, options.learning_rate * typical) for typical, weights in groups.items()]
    plain = {id(scale) for scale in _plain_scales(module)}
    scale_groups: dict[float, list[Tensor]] = {}
    for scale in learned:
        # The smallest scale of a tensor sets the rate, so that no scale changes its sign.
        size = float(scale.detach().abs().min()) if id(scale) in plain else 1.0
        scale_groups.setdefault(2.0 ** math.floor(math.log2(max(size, _TINY))), []).append(scale)
    return rates + [(scales, (options.scale_rate or 0.0) * size) for size, scales in scale_groups.items()]


def _plain_scales(module: QuantizedModule) -> list[Tensor]:
    """Return the scales that are learned directly, not through their logarithm."""
    quantizers = (submodule for submodule in module.modules() if isinstance(submodule, FakeQuantizer))
    return [submodule.scale for submodule in quantizers if submodule.gradient is Gradient.LSQ]


def _floored(scales: list[Tensor]) -> Callable[[], None]:
    """Return a function that raises scales to a fraction of their current values if they fall below."""
    floors = [_FLOOR * scale.detach() for scale in scales]

    def raise_scales() -> None:
        if scales:
            with torch.no_grad():
                torch._foreach_maximum_(scales, floors)

    return raise_scales


def _rate_factor(step: int, steps: int) -> float:
    """Return the learning rate of a step relative to its peak: a linear warm-up, then half a cosine.

    The warm-up has 5 % of the steps, but at least ten, or a quarter of a short run: Adam's first steps follow the signs
    of a few noisy gradients, whatever their size.
    """
    rise = max(1, steps // 20, min(10, steps // 4))
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


# -- data --------------------------------------------------------------------------------------------------------------


def _label_free(module: QuantizedModule) -> Loss:
    distillation, split = DistillationLoss(module, tensors="all"), _splitter(module)

    def loss(student: QuantizedModule, batch: Any) -> Tensor:
        arguments, keywords = split(batch)
        return distillation.of(student, *arguments, **keywords)

    return loss


def _splitter(module: QuantizedModule) -> Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return a function from a batch without a loss to the arguments of a module."""
    count = len(module.definition.model.inputs)

    def split(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        keywords = dict(batch) if isinstance(batch, Mapping) else {}
        plain = batch[:count] if isinstance(batch, list | tuple) else (batch,)
        arguments = () if keywords else tuple(plain)
        wrong = call_error(module, arguments, keywords, "qat")
        if wrong is not None:
            raise wrong
        return arguments, keywords

    return split


def _held_out(module: QuantizedModule, loss: Loss | None, batches: list[Any]) -> HeldOut:
    """Return how results are compared; without labels sample by sample, which shows best whether a gain is one."""
    device = next(module.parameters()).device
    batches = [_moved(batch, device) for batch in batches]
    if loss is not None:
        return HeldOut(loss, batches)
    shapes = [value.shape for value in module.definition.model.model.graph.inputs]
    free = all(shape is not None and len(shape) and not isinstance(shape[0], int) for shape in shapes)
    if free:
        batches = [sample for batch in batches for sample in single_samples(batch)][:_MOST_SAMPLES]
    split = _splitter(module)
    return HeldOut(*output_errors(float_teacher(module), [split(batch) for batch in batches]), by_sample=free)


def _moved(batch: Any, device: torch.device) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.to(device, non_blocking=True) if torch.is_tensor(leaf) else leaf, batch
    )
