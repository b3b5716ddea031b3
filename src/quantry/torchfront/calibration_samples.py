"""Calibration data of torch users as arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def on_cpu(data: Any) -> Any:
    """Return data whose tensors are arrays; what is not made of tensors is left as it is."""
    if isinstance(data, torch.Tensor):
        return data.detach().cpu().numpy()
    if isinstance(data, list | tuple):
        return [_sample(sample) for sample in data]
    if isinstance(data, torch.utils.data.DataLoader):
        return _converted(data)
    return data


def _converted(loader: Any) -> Iterator[Any]:
    return (_sample(sample) for sample in loader)


def _sample(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        return np.asarray(sample.detach().cpu().float() if sample.dtype == torch.bfloat16 else sample.detach().cpu())
    if isinstance(sample, dict):
        return dict(_named(sample))
    if isinstance(sample, list | tuple):
        return tuple(_sample(value) for value in torch.utils._pytree.tree_leaves(sample))
    return sample


def _named(sample: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield arrays by the names that a capture gives to what containers hold: ``p_x`` for ``p["x"]``."""
    parts = sample.items() if isinstance(sample, dict) else enumerate(sample)
    for key, value in parts:
        name = f"{prefix}{key}"
        if isinstance(value, dict | list | tuple):
            yield from _named(value, f"{name}_")
        else:
            yield name, _sample(value)
