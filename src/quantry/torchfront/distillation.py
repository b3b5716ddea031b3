"""Training without labels: the quantized model learns to reproduce the outputs of the float model.

::

    loss = mean over compared tensors of  |student - teacher|^2 / |teacher|^2

The compared tensors are the results and, if requested, inner tensors, which the teacher has under the same names.
Dividing by the teacher's energy gives every tensor the same weight, whatever its range.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quantry.errors import ModelError, SelectionError, known_keywords, nearest_spelling
from quantry.torchfront.quantized_module import QuantizedModule, build, fake_quantizers, require_quantized
from quantry.torchfront.switches import enable_quantizers
from quantry.torchfront.undo_conversions import with_original_nodes
from quantry.tune import Tuned, tuned_model

_SMALLEST = 1e-8
"""Keeps the loss of an all-zero tensor finite."""


@known_keywords("float_copy")
def float_copy(module: QuantizedModule) -> QuantizedModule:
    """Return a copy with the current weights that computes in float, in evaluation mode, without gradients."""
    if isinstance(module, QuantizedModule) and module.is_frozen:
        # The lookup tables of a frozen module only accept quantized values.
        copied = build(replace(module.definition, final=False))
        copied.to(_device(module))
    else:
        copied = copy.deepcopy(module)
    enable_quantizers(copied, enabled=False)
    copied.eval()
    copied.requires_grad_(requires_grad=False)
    return copied


@known_keywords("float_teacher")
def float_teacher(module: QuantizedModule) -> QuantizedModule:
    """Return the float model that was quantized, with its weights before tuning steps and training.

    It has the equalized weights, so that inner tensors can be compared too, and computes the function of the user's
    model even if operators were converted for an NPU. It is on the module's device, in evaluation mode, without
    gradients.

    Raises:
        ModelError: The module is frozen and no longer has the weights before training.
    """
    require_quantized(module, "float_teacher")
    if module.is_frozen:
        raise ModelError(
            "a teacher must be made before the module is frozen, got a frozen one, which only has the trained weights; "
            "use the result of quantize_model; in float_teacher"
        )
    start = module.definition
    model = with_original_nodes(
        tuned_model(start.model, Tuned(start.original_weights, start.params)), start.original_nodes
    )
    teacher = build(replace(start, model=model, original_weights={}, original_nodes={}))
    teacher.to(_device(module))
    return float_copy(teacher)


class DistillationLoss:
    """Compares a quantized module with the float model it came from, on the same inputs.

    Attributes:
        student: The module to train.
        teacher: The result of `float_teacher`, or any module with results of the same shapes.
        tensors: Names of the inner tensors that are compared.

    Example:
        >>> loss = DistillationLoss(model, tensors="all")  # doctest: +SKIP
        >>> loss(images).backward()  # doctest: +SKIP
    """

    @known_keywords("DistillationLoss")
    def __init__(
        self, student: QuantizedModule, teacher: nn.Module | None = None, *, tensors: str | Sequence[str] = ()
    ) -> None:
        require_quantized(student, "DistillationLoss")
        self.student = student
        self.teacher = float_teacher(student) if teacher is None else teacher
        if tensors and not isinstance(self.teacher, QuantizedModule):
            raise ModelError(
                "to compare inner tensors, the teacher must have them under the same names, as float_teacher(student) "
                f"does, got {type(self.teacher).__name__}; omit tensors to compare only the results; in "
                "DistillationLoss"
            )
        activations = [name for name, quantizer in fake_quantizers(student).items() if not quantizer.constant]
        names = activations if tensors == "all" else [tensors] if isinstance(tensors, str) else list(tensors)
        for name in names:
            if name not in activations:
                raise SelectionError(
                    f"a compared tensor must be a quantized activation, got {name!r}"
                    f"{nearest_spelling(name, activations)}; in DistillationLoss"
                )
        self.tensors = tuple(names)

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Run both and return the loss."""
        return self.compare(*arguments, **keywords)[0]

    def of(self, student: QuantizedModule, *arguments: Any, **keywords: Any) -> Tensor:
        """Return the loss of another state of the student, such as an average of its weights."""
        return self._compare(student, arguments, keywords)[0]

    def compare(self, *arguments: Any, **keywords: Any) -> tuple[Tensor, Any, Any]:
        """Run both and return the loss, the student's result and the teacher's result, for use in a custom loss."""
        return self._compare(self.student, arguments, keywords)

    def _compare(self, student: QuantizedModule, arguments: Any, keywords: Any) -> tuple[Tensor, Any, Any]:
        with torch.no_grad():
            expected, theirs = _run(self.teacher, self.tensors, arguments, keywords)
        actual, ours = _run(student, self.tensors, arguments, keywords)
        shapes = [[tuple(leaf.shape) for leaf in _leaves(result)] for result in (actual, expected)]
        if shapes[0] != shapes[1]:
            raise ModelError(
                f"a teacher must return the student's shapes {shapes[0]}, got {shapes[1]}; in DistillationLoss"
            )
        pairs = [*zip(_leaves(actual), _leaves(expected), strict=True)]
        pairs += [(ours[name], theirs[name]) for name in self.tensors]
        floats = [(output.float(), target.float()) for output, target in pairs]
        losses = [(o - t).square().mean() / (t.square().mean() + _SMALLEST) for o, t in floats]
        return torch.stack(losses).mean(), actual, expected


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _leaves(result: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(leaf)]


def _run(model: nn.Module, tensors: Sequence[str], arguments: Any, keywords: Any) -> tuple[Any, dict[str, Tensor]]:
    values: dict[str, Tensor] = {}

    def record(name: str) -> Any:
        def hook(_: nn.Module, __: Any, result: Tensor) -> None:
            values[name] = result

        return hook

    hooks = []
    if tensors:
        assert isinstance(model, QuantizedModule)
        paths = model.layout.quantizers
        hooks = [model.get_submodule(paths[name]).register_forward_hook(record(name)) for name in tensors]
    try:
        result = model(*arguments, **keywords)
    finally:
        for hook in hooks:
            hook.remove()
    return result, values
