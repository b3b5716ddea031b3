"""Whether a model computes several samples at once as it computes each of them alone.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = dict[str, Any]


def joined(samples: Sequence[Tensors]) -> Tensors:
    """Return samples as one batch along their first axes; a single one as it is."""
    if len(samples) == 1:
        return samples[0]
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}


def joins(samples: Sequence[Tensors], run: Callable[[Tensors], Tensors]) -> bool:
    """Return whether all tensors of two joined samples equal those of the single samples.

    Args:
        samples: Two samples.
        run: Computes the tensors to compare.
    """
    shapes = [{name: tensor.shape for name, tensor in sample.items()} for sample in samples]
    if len(samples) < 2 or shapes[0] != shapes[1] or any(not shape for shape in shapes[0].values()):
        return False
    try:
        alone, together = [run(sample) for sample in samples], run(joined(samples))
    except RuntimeError:
        return False
    return all(_alike(tensor, [sample[name] for sample in alone]) for name, tensor in together.items())


def _alike(together: Any, alone: Sequence[Any]) -> bool:
    if not alone[0].dim() or alone[0].shape != alone[1].shape:
        return False
    expected = torch.cat(list(alone)).float()
    # Other batch sizes add in another order; a model that mixes its samples differs by far more than that.
    return (
        together.shape == expected.shape
        and float((together.float() - expected).norm()) <= 1e-2 * float(expected.norm()) + 1e-6
    )
