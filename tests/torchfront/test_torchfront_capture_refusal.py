"""A failed capture raises one sentence: what is wrong, where, and what works instead."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from quantry.errors import DataError, ModelError
from quantry.torch import ModelQuantizer
from quantry.torchfront import FloatScopes, capture, export, float_copy, quantize_graph


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x)


class WithSpectrum(nn.Module):
    """Has an operator without a lowering in its head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = Spectrum()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if y.sum() > 0:
            return y + 1
        return y - 1


class Conditional(Branch):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.cond(y.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,))


class Chosen(Branch):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.where(y.sum() > 0, y + 1, y - 1)


class Single(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).view(1, 4, 36)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, weight: Tensor, scale: float = 2.0) -> dict[str, object]:
        return {"y": self.linear(x) * weight[0] * scale, "kept": [weight, 3]}


def images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def test_unknown_operator_error_suggests_what_works(tmp_path: Path) -> None:
    model = WithSpectrum().eval()
    for scopes in (None, FloatScopes(modules=("head",))):
        with pytest.raises(ModelError) as caught:
            quantize_graph(capture(model, images()), [images()], "XINT8", float_scopes=scopes)
        assert "aten.linalg_svdvals.default in 'head'; excluding the node does not help" in str(caught.value)
        assert "model.backbone = capture(model.backbone, its_input)" in str(caught.value)
    model.backbone = quantize_graph(capture(model.backbone, images()), [images()], "XINT8")
    assert model(images()).shape == (2, 4, 6)
    with pytest.raises(ModelError, match=r"export the quantized module by itself: export_onnx\(model\.backbone"):
        export(model, tmp_path / "whole.onnx", images())
    assert export(model.backbone, tmp_path / "part.onnx", images()).is_exact


def test_control_flow_of_torch_is_quantized(tmp_path: Path) -> None:
    torch.manual_seed(3)  # with sums far from zero, so that rounding does not change the condition
    model = Conditional().eval()
    both = [images(), -images()]  # one for each branch
    module = quantize_graph(capture(model, images()), both, "S8S8_AAWS")
    for example in both:
        with torch.no_grad():
            torch.testing.assert_close(module(example), model(example), rtol=0.0, atol=0.05)
    assert len(export(module, tmp_path / "cond.onnx", images()).differences) == 1


def test_parametrized_weight_is_folded_and_trained() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    example = torch.rand(2, 4)
    module = quantize_graph(capture(model, example), [example], "XINT8")
    with torch.no_grad():
        torch.testing.assert_close(float_copy(module)(example), model(example))
    module.train()(example).sum().backward()
    assert all(part.grad is not None for part in module.parameters())


def test_branch_on_values_error_names_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError) as caught:
        capture(Branch(), images())
    text = str(caught.value)
    assert f"{Path(__file__).name}:" in text
    assert "(if y.sum() > 0:); select values with torch.where" in text
    assert "\n" not in text
    assert "def forward" not in capfd.readouterr().err


def test_torch_where_is_quantized() -> None:
    module = quantize_graph(capture(Chosen(), images()), [images()], "XINT8")
    with torch.no_grad():
        assert module(images(3)).shape == (3, 4, 6, 6)


@pytest.mark.parametrize(
    ("example", "kwargs", "reason"),
    [
        (torch.rand(2, 5, 8, 8), {}, r"float32\[2, 5, 8, 8\]: Sequential fails: .* 3 channels"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), {}, r"int64\[2, 3, 8, 8\]: Sequential fails"),
        ((images(), images()), {}, r"forward\(input\), got .*: too many positional arguments"),
        (images(), {"mask": images()}, "unexpected keyword argument 'mask'"),
        ({"input": images(), "label": images()}, {}, "unexpected keyword argument 'label'"),
        (images().numpy(), {}, "at least one torch tensor, got ndarray"),
    ],
)
def test_wrong_example_raises_data_error(example: object, kwargs: dict[str, object], reason: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with pytest.raises(DataError, match=reason):
        capture(model, example, kwargs)
    assert model.training


@pytest.mark.parametrize("model", [nn.ReLU(), None], ids=["module", "captured"])
def test_key_too_many_in_a_batch_is_named(model: nn.Module | None) -> None:
    data = [{"input": images(), "label": torch.zeros(2)}]
    with pytest.raises(DataError, match="'label'"):
        ModelQuantizer("XINT8").quantize_model(model or capture(nn.ReLU(), images()), data)


def test_keyword_examples_in_any_order() -> None:
    example = {"weight": torch.rand(4), "x": torch.rand(2, 4)}
    model = Pair()
    module = quantize_graph(capture(model, example), [example], "A16W8")
    with torch.no_grad():
        found, wanted = (part(x=example["x"].repeat(3, 1), weight=example["weight"]) for part in (module, model))
    assert found["kept"][1] == 3
    torch.testing.assert_close(found["y"], wanted["y"], atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    "shapes", [{"inputt": {0: torch.export.Dim.AUTO}}, ({0: torch.export.Dim.AUTO, 1: torch.export.Dim("c")},), "Batch"]
)
def test_wrong_dynamic_shapes_raise_data_error(shapes: object) -> None:
    with pytest.raises(DataError, match="dynamic_shapes must"):
        capture(nn.Sequential(nn.Conv2d(3, 4, 3)), images(), dynamic_shapes=shapes)


def test_quantized_module_is_not_captured_again() -> None:
    module = quantize_graph(capture(nn.ReLU(), images()), [images()], "XINT8")
    with pytest.raises(ModelError, match=r"already quantized; .* in capture"):
        capture(nn.Sequential(module), images())


def test_model_of_one_image_keeps_its_batch() -> None:
    graph = capture(Single(), images(1))
    assert graph(images(1)).shape == (1, 4, 36)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_module_without_python_code_is_refused() -> None:
    with pytest.raises(ModelError, match="a torch module in Python, got TopLevelTracedModule"):
        capture(torch.jit.trace(nn.ReLU(), images()), images())


@pytest.mark.parametrize(
    ("model", "example", "reason"),
    [
        (nn.Linear(4, 2, device="meta"), torch.rand(2, 4, device="meta"), "'weight' on the meta device; load"),
        (nn.Linear(4, 2).bfloat16(), torch.rand(2, 4).bfloat16(), r"'weight' of torch.bfloat16; capture model.float"),
        (nn.Linear(4, 2).double(), torch.rand(2, 4).double(), "'weight' of torch.float64"),
        (nn.Linear(4, 2).half(), torch.rand(2, 4).half(), "must compute in float32, got a float16 model"),
    ],
    ids=["meta", "bfloat16", "float64", "float16"],
)
def test_weights_that_cannot_be_quantized_are_named(model: nn.Module, example: Tensor, reason: str) -> None:
    graph = capture(model, example)
    with pytest.raises(ModelError, match=reason):
        quantize_graph(graph, [torch.rand(2, 4)], "XINT8")


def test_functions_with_options_keep_them() -> None:
    class Options(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            masked = torch.where(~(x > 0.2) & (x <= 0.7) | (x == 0.9), functional.softplus(x, beta=3.0), x.sin())
            return torch.div(masked, 0.3, rounding_mode="trunc") + x.clamp(x.mean(), torch.tensor(0.6)).ge(0.5).float()

    x = images()
    module = quantize_graph(capture(Options(), x), [x], "XINT8", float_scopes=FloatScopes(types=("Options",)))
    with torch.no_grad():
        torch.testing.assert_close(module(x), Options()(x))
