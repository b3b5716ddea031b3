"""A teacher that is asked several times: the mean of its answers to views of one input is better than each of them.

A mirrored picture has the same class, and mirrored boxes. What a model says to it differs by errors of its own, which
the mean cancels, so that a student without labels can come to know more than the float model does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quantry.errors import ModelError, RecipeError
from quantry.keywords import known_keywords


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class View:
    """One way to look at an input.

    Attributes:
        before: From an input to the view of it, which must not change the input.
        after: From the answer to the view to the answer to the input; as it is where the answer has no place, as a
            class has none.

    Example:
        >>> mirrored = View(before=lambda images: images.flip(-1))
        >>> mirrored.before(torch.tensor([1, 2]))
        tensor([2, 1])
    """

    before: Callable[[Tensor], Tensor] = _unchanged
    after: Callable[[Any], Any] = _unchanged

    def __post_init__(self) -> None:
        for name in ("before", "after"):
            if not callable(getattr(self, name)):
                raise RecipeError(f"View.{name} must be a function, got {type(getattr(self, name)).__name__}")


class AveragedTeacher(nn.Module):  # type: ignore[misc]
    """Answers with the mean of what a model says to several views of an input.

    Attributes:
        teacher: The model, such as `float_teacher` returns; it takes one tensor.
        views: The views; `View()` is the input itself.

    Example:
        >>> views = [View(), View(before=lambda images: images.flip(-1))]
        >>> teacher = AveragedTeacher(float_teacher(model), views)  # doctest: +SKIP
        >>> loss = DistillationLoss(model, teacher)  # doctest: +SKIP
    """

    @known_keywords("AveragedTeacher", {"model": "teacher"})
    def __init__(self, teacher: nn.Module, views: Sequence[View]) -> None:
        super().__init__()
        if not isinstance(teacher, nn.Module):
            raise ModelError(f"a teacher must be a torch module, got {type(teacher).__name__}; in AveragedTeacher")
        self.teacher = teacher
        self.views = tuple(views) if isinstance(views, Iterable) else (views,)
        strangers = [type(view).__name__ for view in self.views if not isinstance(view, View)]
        if strangers or not self.views:
            raise RecipeError(
                f"views must be one View(before, after) or more, got {', '.join(strangers) or 'none'}; "
                "in AveragedTeacher"
            )

    def forward(self, *inputs: Tensor, **named: Any) -> Any:
        """Return the mean, in the form of one answer.

        Raises:
            ModelError: There is more than one input, answers differ in form, or they are no numbers with a mean.
        """
        if len(inputs) != 1 or named:
            given = ", ".join([f"{len(inputs)} of them", *named])
            raise ModelError(f"an averaged teacher must take one tensor, got {given}; in AveragedTeacher")
        answers = [view.after(self.teacher(view.before(inputs[0]))) for view in self.views]
        forms = {_form(answer) for answer in answers}
        if len(forms) > 1:
            raise ModelError(
                f"View.after must bring all answers to one form, got {' and '.join(sorted(forms))}; in AveragedTeacher"
            )
        return torch.utils._pytree.tree_map(_mean, *answers)


def _mean(*parts: Any) -> Any:
    one = parts[0]
    if torch.is_tensor(one) and (one.is_floating_point() or one.is_complex()):
        return torch.stack(parts).mean(0)
    if isinstance(one, float):
        return sum(parts) / len(parts)
    if torch.is_tensor(one) and all(torch.equal(one, other) for other in parts):
        return one
    if one is None or (isinstance(one, bool | int | str) and all(one == other for other in parts)):
        return one
    kind = one.dtype if torch.is_tensor(one) else type(one).__name__
    raise ModelError(
        f"answers must be tensors of numbers that have a mean, such as scores and not classes, got {kind}; "
        "in AveragedTeacher"
    )


def _form(answer: Any) -> str:
    leaves, structure = torch.utils._pytree.tree_flatten(answer)
    shapes = [list(leaf.shape) if torch.is_tensor(leaf) else type(leaf).__name__ for leaf in leaves]
    return f"{shapes}" if len(leaves) == 1 and torch.is_tensor(answer) else f"{shapes} in {structure}"
