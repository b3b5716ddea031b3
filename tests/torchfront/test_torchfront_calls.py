"""Modules with keyword arguments, constants, dataclasses and branches go from capture to export."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onnx_oracle import from_text
from quantry.torchfront import QatOptions, capture, export, qat, quantize_graph


def rows() -> Tensor:
    return torch.randn(4, 5, 6)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, *, factor: Tensor | None = None, **settings: Any) -> dict[str, Any]:
        hidden = self.first(x)
        hidden = hidden.tanh() if settings.get("mode") == "tanh" else hidden.relu()
        return {"out": self.last(hidden if factor is None else hidden * factor), "hidden": [hidden]}


@dataclass
class Pair:
    """A dataclass that torch was not told about."""

    left: Tensor
    right: Tensor
    name: str = "pair"


@dataclass
class Nested:
    pair: Pair
    more: dict[str, Tensor] = field(default_factory=dict)


class Dataclasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, given: Pair) -> Nested:
        return Nested(Pair(self.layer(given.left), self.layer(given.right)), {"sum": given.left + given.right})


class BranchesOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, lambda y: self.left(y).relu(), lambda y: self.right(y).sigmoid(), (x,))
        return found


def test_keywords_and_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Keywords().eval()
    data = [{"x": rows(), "factor": torch.rand(4, 5, 8)} for _ in range(3)]
    module = quantize_graph(capture(model, data[0], {"mode": "tanh"}), data, "XINT8")
    assert "forward" not in model.__dict__
    result = module(**data[0])  # the constant need not be repeated
    assert torch.equal(result["out"], module(**data[0], mode="tanh")["out"])
    expected = model(**data[0], mode="tanh")["out"].detach()
    assert torch.allclose(result["out"].detach(), expected, atol=0.1 * float(expected.abs().max()))
    qat(module, data, options=QatOptions(steps=1))
    done = export(module, tmp_path / "model.onnx", data[0], samples=data[1:])
    assert done.is_exact, str(done)
    assert done.differences[0].count == 3 * result["out"].numel()


def test_dataclasses_in_arguments_and_results(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pair = Pair(rows(), rows())
    model = Dataclasses().eval()
    module = capture(model, (pair,))
    assert isinstance(module(pair), Nested)
    quantized = quantize_graph(module, [(pair,)], "XINT8")
    assert isinstance(quantized(pair), Nested)
    assert quantized(pair).pair.name == "pair"
    assert export(quantized, tmp_path / "model.onnx", (pair,)).is_exact


@pytest.mark.filterwarnings("ignore")
def test_model_of_branches_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = [rows() for _ in range(2)]
    module = quantize_graph(capture(BranchesOnly().eval(), data[0]), data, "XINT8")
    done = export(module, tmp_path / "model.onnx", data[0], samples=data)
    assert done.path.exists()
    assert done.violations == ()
    assert max(entry.largest for entry in done.differences) < 1e-6


class Repeated(nn.Module):
    """The layer runs a number of times that depends on the values, and a condition inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        def body(count: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            made = torch.tanh(self.layer(state) + x)
            return count + 1, torch.cond(made.mean() > 0, lambda y: y * 0.5, lambda y: self.layer(y) * 2, (made,))

        rounds = 2 + (x.sum() > 0).long()
        start = (torch.tensor(0), x * 0.5)
        return torch._higher_order_ops.while_loop(lambda count, state: count < rounds, body, start)[1]


class Scanned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            following = torch.tanh(self.layer(state) + row)
            return following, following * 2

        state, found = torch._higher_order_ops.scan(step, torch.zeros(5, 6), x, reverse=True)
        return self.last(found), state


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Repeated, Scanned])
def test_loops_are_quantized_trained_and_exported(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, model = [rows() for _ in range(4)], kind().eval()
    module = quantize_graph(capture(model, data[0]), data, "XINT8")
    for batch in data:
        for ours, theirs in zip(tree_leaves(module(batch)), tree_leaves(model(batch)), strict=True):
            assert float((ours - theirs).square().mean() / theirs.square().mean()) < 0.01
    before = {name: part.detach().clone() for name, part in module.named_parameters()}
    qat(module, data, options=QatOptions(steps=2), held_out=[])
    after = dict(module.named_parameters())
    assert any(not torch.equal(after[name], part) for name, part in before.items() if "layer" in name)
    done = export(module, tmp_path / "model.onnx", data[0], samples=data)
    assert done.violations == ()
    assert max(entry.largest for entry in done.differences) < 1e-5


ROUNDS = """<ir_version: 8, opset_import: ["": 16]> g (float[5,6] x, int64 n) => (float[5,6] y, float[rounds,5,6] z) {
    y, z = Loop (n, , x) <body = l (int64 i, bool before, float[5,6] state)
        => (bool after, float[5,6] next, float[5,6] row) {
        after = Identity (before)  a = MatMul (state, w)  next = Tanh (a)  row = MatMul (next, w) }> }"""


def test_a_loop_may_have_no_round() -> None:
    torch.manual_seed(0)
    proto = from_text(ROUNDS, w=torch.randn(6, 6).numpy() / 4)
    data = [{"x": rows()[0].numpy(), "n": np.array(count)} for count in (1, 2, 3)]
    module = quantize_graph(proto.SerializeToString(), data, "XINT8")
    session = ort.InferenceSession(proto.SerializeToString())
    for count in (2, 0):
        expected = session.run(None, {"x": data[0]["x"], "n": np.array(count)})
        found = module(torch.from_numpy(data[0]["x"]), torch.tensor(count))
        assert [tuple(part.shape) for part in found] == [part.shape for part in expected]
