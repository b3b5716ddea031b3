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
        return {name: _sample(value) for name, value in sample.items()}
    if isinstance(sample, list | tuple):
        return tuple(_sample(value) for value in sample)
    return sample
