"""Switches quantizers, observers, batch statistics and learned scales while a module trains.

Each function accepts any module and finds the quantized modules inside. A model without any raises an error, because a
call without effect would go unnoticed.
"""

from torch import nn

from quantry.errors import ModelError, RecipeError, known_keywords, nearest_spelling
from quantry.execute.batch_norm_layer import BatchNormLayer
from quantry.execute.fake_quantizer import FakeQuantizer, FloatCast
from quantry.numerics.torch_quantizer import Gradient
from quantry.torchfront.quantized_module import QuantizedModule


@known_keywords("enable_quantizers")
def enable_quantizers(model: nn.Module, *, enabled: bool = True) -> None:
    """Quantize, or compute in float if `enabled` is False."""
    _require_quantizers(model, "enable_quantizers")
    for submodule in model.modules():
        if isinstance(submodule, FakeQuantizer | FloatCast):
            submodule.enabled = enabled


@known_keywords("start_observers")
def start_observers(model: nn.Module, *, once: bool = False) -> None:
    """Let scales follow the range of the values seen in training mode: weights at once, activations as an average.

    Args:
        model: The model.
        once: Only take the range of the first training batch, and only for activations: a start for scales that
            training learns, if there is no calibration data.
    """
    _require_quantizers(model, "start_observers")
    _refuse_frozen(model, "start_observers")
    for submodule in model.modules():
        if isinstance(submodule, FakeQuantizer) and not (once and submodule.constant):
            submodule.observing, submodule.observe_once = True, once


@known_keywords("freeze_observers")
def freeze_observers(model: nn.Module) -> None:
    """Stop the observers; scales keep their values."""
    _require_quantizers(model, "freeze_observers")
    for submodule in model.modules():
        if isinstance(submodule, FakeQuantizer):
            submodule.observing = False


@known_keywords("freeze_batch_norm")
def freeze_batch_norm(model: nn.Module, *, frozen: bool = True) -> None:
    """Use running statistics and do not update them in training mode either, so training sees the exported model."""
    _require_quantizers(model, "freeze_batch_norm")
    for submodule in model.modules():
        if isinstance(submodule, BatchNormLayer):
            submodule.frozen = frozen


@known_keywords("learn_scales")
def learn_scales(
    model: nn.Module, gradient: Gradient | str | None = None, *, weights: bool = True, activations: bool = True
) -> list[nn.Parameter]:
    """Make scales trainable.

    Args:
        model: The model.
        gradient: "tqt" trains the logarithm, "lsq" the scale itself; None selects TQT for power-of-two scales and LSQ
            for others; "straight-through" fixes the scales again.
        weights: Train the scales of weights and biases.
        activations: Train the scales of activations.

    Returns:
        The parameters, for an optimizer group with its own learning rate.

    Raises:
        ModelError: A module is frozen, or none is quantized.
        RecipeError: `gradient` has another value.
    """
    _require_quantizers(model, "learn_scales")
    _refuse_frozen(model, "learn_scales")
    member = None if gradient is None else _gradient(gradient)
    learned: list[nn.Parameter] = []
    for submodule in model.modules():
        if isinstance(submodule, FakeQuantizer) and (weights if submodule.constant else activations):
            learned += submodule.learn(member or (Gradient.TQT if submodule.is_power_of_two else Gradient.LSQ))
    return learned


def _gradient(kind: Gradient | str) -> Gradient:
    names = {entry.value: entry for entry in (Gradient.STRAIGHT_THROUGH, Gradient.LSQ, Gradient.TQT)}
    name = kind.value if isinstance(kind, Gradient) else str(kind).lower()
    if name not in names:
        raise RecipeError(
            f"gradient must be one of {', '.join(names)}, got {kind!r}{nearest_spelling(name, names)}; in learn_scales"
        )
    return names[name]


def require_enabled(model: nn.Module, caller: str) -> None:
    """Raise ModelError if a quantizer is disabled: export writes it anyway."""
    if any(isinstance(submodule, FakeQuantizer | FloatCast) and not submodule.enabled for submodule in model.modules()):
        raise ModelError(
            "all quantizers must be enabled when a module is frozen or exported, got disabled ones, as after "
            "float_copy; export a float model with torch.onnx.export, or call enable_quantizers(model); in "
            f"{caller}"
        )


def _require_quantizers(model: nn.Module, caller: str) -> None:
    submodules = model.modules() if isinstance(model, nn.Module) else ()
    if not any(isinstance(submodule, QuantizedModule) for submodule in submodules):
        raise ModelError(
            f"a model must be or contain a quantized module, got {type(model).__name__} without any; "
            f"quantize it first; in {caller}"
        )


def _refuse_frozen(model: nn.Module, caller: str) -> None:
    if any(isinstance(submodule, QuantizedModule) and submodule.is_frozen for submodule in model.modules()):
        raise ModelError(
            "scales must be changed before the module is frozen, got a frozen one; use the result of quantize_model; "
            f"in {caller}"
        )
