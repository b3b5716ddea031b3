"""Quantizes a torch module through quantry's own path, writes it, compares it with the export, and trains a step."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.onnx_results import Entry, FloatModel, InvalidResult
from benchmarks.zoo.subject import Sample, Subject


def tensors(sample: Sample) -> dict[str, Any]:
    """Return a sample as tensors."""
    import torch

    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in sample.items()}


def quantize_in_torch(subject: Subject, model: FloatModel | None, samples: list[Sample]) -> Entry:
    """Capture, quantize with XINT8, export, compute gradients, and compare with torch and with the float model."""
    from quantry.torchfront import capture, export, quantize_graph

    given = [tensors(sample) for sample in samples]
    graph = capture(subject.module, given[0], subject.settings)
    quantized = quantize_graph(graph, given, "XINT8")
    path = Path("torch.onnx")
    done = export(quantized, path, given[0], samples=given[1:3])
    trained = _gradient_error(quantized, given[0])  # last, because it changes batch statistics
    told: Entry = {
        "exact": done.is_exact,
        "except": list(done.rounded),
        "differing": sum(entry.differing for entry in done.differences),
        "largest": max((entry.largest for entry in done.differences), default=0.0),
        **({"untrained": trained} if trained else {}),
    }
    return {**told, **(model.compare(path) if model is not None else {})}


def _gradient_error(module: Any, call: dict[str, Any]) -> str:
    """Return why the module cannot be trained, or nothing."""
    import torch

    module.train()
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(module(**call)) if torch.is_tensor(leaf)]
    results = [leaf for leaf in leaves if leaf.is_floating_point() and leaf.requires_grad]
    module.eval()
    if not results:
        return "no output depends on a trainable weight"
    loss = sum(leaf[torch.isfinite(leaf)].square().mean() for leaf in results)
    loss.backward()  # type: ignore[union-attr]
    gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
    module.zero_grad(set_to_none=True)
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise InvalidResult("gradients are not finite")
    return "" if gradients else "no weight has a gradient"
