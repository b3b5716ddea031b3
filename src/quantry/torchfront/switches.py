"""What can be switched while a module trains: quantizers, observers, batch statistics, learned scales.

Each takes any module and finds the quantized parts inside, so that a model with a quantized submodule can be passed.
A model without any is refused: switching nothing would go unnoticed.
"""

from torch import nn

from quantry.errors import ModelError, RecipeError, known_keywords, nearest_spelling
from quantry.numerics.torch_quantizer import Gradient
from quantry.recipe import PowerOfTwoScale
from quantry.torchfront.batch_norm_layer import BatchNormLayer
from quantry.torchfront.fake_quantizer import FakeQuantizer, FloatCast
from quantry.torchfront.quantized_module import QuantizedModule


@known_keywords("enable_quantizers")
def enable_quantizers(model: nn.Module, *, enabled: bool = True) -> None:
    """Quantize, or compute in float."""
    _require_quantizers(model, "enable_quantizers")
    for part in model.modules():
        if isinstance(part, FakeQuantizer | FloatCast):
            part.enabled = enabled


@known_keywords("start_observers")
def start_observers(model: nn.Module) -> None:
    """Let scales follow the extremes of what is seen in training mode: of weights at once, of activations slowly."""
    _require_quantizers(model, "start_observers")
    _refuse_frozen(model, "start_observers")
    for part in model.modules():
        if isinstance(part, FakeQuantizer):
            part.observing = True


@known_keywords("freeze_observers")
def freeze_observers(model: nn.Module) -> None:
    """Keep scales as they are."""
    _require_quantizers(model, "freeze_observers")
    for part in model.modules():
        if isinstance(part, FakeQuantizer):
            part.observing = False


@known_keywords("freeze_batch_norm")
def freeze_batch_norm(model: nn.Module, *, frozen: bool = True) -> None:
    """Keep running statistics as they are, in training mode too, so that what is trained is what is exported."""
    _require_quantizers(model, "freeze_batch_norm")
    for part in model.modules():
        if isinstance(part, BatchNormLayer):
            part.frozen = frozen


@known_keywords("learn_scales")
def learn_scales(
    model: nn.Module, gradient: Gradient | str | None = None, *, weights: bool = True, activations: bool = True
) -> list[nn.Parameter]:
    """Let scales be trained.

    Args:
        model: The model.
        gradient: "tqt" trains the logarithm, "lsq" the scale itself; None takes TQT for power-of-two scales and LSQ
            for others; "straight-through" fixes them again.
        weights: Train the scales of weights and biases.
        activations: Train the scales of activations.

    Returns:
        The parameters, for an optimizer's group with a learning rate of its own.

    Raises:
        ModelError: A module is frozen, or none is quantized.
        RecipeError: There is no such gradient.
    """
    _require_quantizers(model, "learn_scales")
    _refuse_frozen(model, "learn_scales")
    chosen = None if gradient is None else _gradient(gradient)
    learned: list[nn.Parameter] = []
    for part in model.modules():
        if isinstance(part, FakeQuantizer) and (weights if part.constant else activations):
            power_of_two = isinstance(part.spec.scale, PowerOfTwoScale)
            learned += part.learn(chosen or (Gradient.TQT if power_of_two else Gradient.LSQ))
    return learned


def _gradient(given: Gradient | str) -> Gradient:
    names = {entry.value: entry for entry in (Gradient.STRAIGHT_THROUGH, Gradient.LSQ, Gradient.TQT)}
    name = given.value if isinstance(given, Gradient) else str(given).lower()
    if name not in names:
        raise RecipeError(
            f"gradient must be one of {', '.join(names)}, got {given!r}{nearest_spelling(name, names)}; in learn_scales"
        )
    return names[name]


def refuse_switched_off(model: nn.Module, where: str) -> None:
    """Raise ModelError where a quantizer is switched off, since it is written all the same."""
    if any(isinstance(part, FakeQuantizer | FloatCast) and not part.enabled for part in model.modules()):
        raise ModelError(
            "a module that is frozen or exported must have its quantizers switched on, got one with some switched off, "
            "such as a float twin; export a float model with torch.onnx.export, or call enable_quantizers(model); in "
            f"{where}"
        )


def _require_quantizers(model: nn.Module, where: str) -> None:
    parts = model.modules() if isinstance(model, nn.Module) else ()
    if not any(isinstance(part, QuantizedModule) for part in parts):
        raise ModelError(
            f"a model must be or have what quantize_model returned, got {type(model).__name__} without any; quantize "
            f"it first; in {where}"
        )


def _refuse_frozen(model: nn.Module, where: str) -> None:
    if any(isinstance(part, QuantizedModule) and part.is_frozen for part in model.modules()):
        raise ModelError(
            "scales move in what quantize_model returned, before it is frozen, got a frozen module, whose scales are "
            f"final; in {where}"
        )
