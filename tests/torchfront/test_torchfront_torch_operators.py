"""Everyday operators of torch are captured, quantized, trained and exported; eager torch and onnxruntime decide."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch_cases import CASES, GROUPS, Case

from quantry.torchfront import QuantizedModule, capture, export, float_teacher, quantize_graph


class Together(nn.Module):
    """Several functions of one layer's result, captured at once: a capture takes longer than what it captures."""

    def __init__(self, layer: nn.Module, functions: tuple[Any, ...]) -> None:
        super().__init__()
        self.layer, self.functions = layer, functions

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.layer(x)
        return [function(y) for function in self.functions]


def outputs(module: nn.Module, arguments: tuple[Any, ...]) -> list[Tensor]:
    with torch.no_grad():
        result = module(*arguments)
    return [result] if torch.is_tensor(result) else list(result)


def check(module: nn.Module, example: tuple[Any, ...], names: tuple[str, ...], path: Path) -> QuantizedModule:
    quantized = quantize_graph(capture(module, example), [example], "S8S8_AAWS")
    teacher = float_teacher(quantized)
    for arguments in (example, tuple(torch.cat([part, part[:1]]) for part in example)):
        for name, found, wanted in zip(names, outputs(teacher, arguments), outputs(module, arguments), strict=True):
            torch.testing.assert_close(
                found, wanted, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
    done = export(quantized, path, example)
    assert [name for name, entry in zip(names, done.differences, strict=True) if not entry.largest < 1.0] == []
    session = onnxruntime.InferenceSession(str(done.path))
    assert len(session.get_inputs()) == len(example)
    results = quantized.train()(*example)
    results = [results] if torch.is_tensor(results) else list(results)
    torch.stack([part.float().mean() for part in results]).sum().backward()
    return quantized


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_operators_compute_what_torch_computes(group: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Together(group.layer(), tuple(group.functions.values())).eval()
    quantized = check(module, group.example(), tuple(group.functions), tmp_path / "model.onnx")
    assert all(part.grad is not None for part in quantized.parameters())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_modules_compute_what_torch_computes(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(case.make(), case.example(), (case.name,), tmp_path / "model.onnx")
