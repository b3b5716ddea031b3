"""The mean of a teacher's answers to several views, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_nets import SmallNet, batches

from quantry.errors import ModelError, RecipeError
from quantry.recipe import resolve_recipe
from quantry.torchfront import (
    AveragedTeacher,
    DistillationLoss,
    QatOptions,
    View,
    capture,
    float_teacher,
    qat,
    quantize_graph,
)

MIRRORED = View(before=lambda images: images.flip(-1))


class Places(nn.Module):
    """Answers with a picture and a number in a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        seen = self.layer(images)
        return {"places": seen, "sum": seen.sum((1, 2, 3))}


def test_one_view_is_the_teacher() -> None:
    model, x = SmallNet().eval(), batches()[0]
    torch.testing.assert_close(AveragedTeacher(model, [View()])(x), model(x))


def test_answers_are_averaged() -> None:
    model, x = SmallNet().eval(), batches()[0]
    torch.testing.assert_close(AveragedTeacher(model, [View(), MIRRORED])(x), (model(x) + model(x.flip(-1))) / 2)


def test_answers_come_back_to_their_places() -> None:
    model, x = Places(), torch.rand(2, 3, 6, 6)
    back = View(MIRRORED.before, lambda seen: {"places": seen["places"].flip(-1), "sum": seen["sum"]})
    found = AveragedTeacher(model, [View(), back])(x)
    own, other = model(x), model(x.flip(-1))
    torch.testing.assert_close(found["places"], (own["places"] + other["places"].flip(-1)) / 2)
    torch.testing.assert_close(found["sum"], (own["sum"] + other["sum"]) / 2)


def test_student_learns_from_the_mean() -> None:
    pictures = batches()
    module = quantize_graph(capture(SmallNet().eval(), pictures[0]), pictures, resolve_recipe("XINT8")[0])
    loss = DistillationLoss(module, AveragedTeacher(float_teacher(module), [View(), MIRRORED]))
    before = loss(pictures[0]).item()
    qat(module, pictures, lambda _, batch: loss(batch), QatOptions(steps=40, learning_rate=3e-3))
    assert loss(pictures[0]).item() < 0.9 * before


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([], "views must be one View"),
        (None, "got NoneType"),
        ([lambda images: images], "got function"),
        ([View(), View(after=lambda answer: answer[:1])], "one form"),
    ],
)
def test_wrong_views_are_refused(views: list[View], said: str) -> None:
    with pytest.raises((RecipeError, ModelError), match=said):
        AveragedTeacher(SmallNet().eval(), views)(batches()[0])


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda sums: (sums, float(sums[0])), 3.0),
        (lambda sums: (sums, None), None),
        (lambda sums: (sums, "word"), "word"),
    ],
)
def test_what_is_no_tensor_is_averaged_or_the_same(answer: Callable[[Tensor], Any], found: object) -> None:
    views = [View(after=answer), View(before=lambda values: 2 * values, after=answer)]
    mean, other = AveragedTeacher(nn.Identity(), views)(torch.tensor([2.0]))
    assert mean.item() == 3.0
    assert other == found


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda values: values.long(), r"scores and not classes, got torch.int64"),
        (lambda values: int(values[0]), "got int"),
        (lambda values: values.numpy(), "got ndarray"),
    ],
)
def test_answers_without_a_mean_are_refused(answer: Callable[[Tensor], Any], said: str) -> None:
    views = [View(after=answer), View(before=lambda values: 2 * values, after=answer)]
    with pytest.raises(ModelError, match=said):
        AveragedTeacher(nn.Identity(), views)(torch.tensor([2.0]))


def test_more_than_one_input_is_refused() -> None:
    teacher = AveragedTeacher(nn.Identity(), [View()])
    with pytest.raises(ModelError, match="must take one tensor, got 2 of them"):
        teacher(torch.ones(1), torch.ones(1))
    with pytest.raises(ModelError, match="got 0 of them, images"):
        teacher(images=torch.ones(1))


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"View\.before must be a function, got str"):
        View(before="mirror")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="must be a torch module, got function"):
        AveragedTeacher(lambda images: images, [View()])  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"did you mean .views."):
        AveragedTeacher(SmallNet(), view=[View()])  # type: ignore[call-arg]
