"""The mean of a teacher's answers to several views, and what it refuses."""

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
        ([lambda images: images], "got function"),
        ([View(), View(after=lambda answer: answer[:1])], "one form"),
    ],
)
def test_wrong_views_are_refused(views: list[View], said: str) -> None:
    with pytest.raises((RecipeError, ModelError), match=said):
        AveragedTeacher(SmallNet().eval(), views)(batches()[0])


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"View\.before must be a function, got str"):
        View(before="mirror")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="must be a torch module, got function"):
        AveragedTeacher(lambda images: images, [View()])  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"did you mean .views."):
        AveragedTeacher(SmallNet(), view=[View()])  # type: ignore[call-arg]
