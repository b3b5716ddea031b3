"""Random weights with the statistics of trained ones.

Initial weights are easier to quantize than trained ones, and some make a network constant: trained channels differ in
size, a few are far larger than the others, scales of residual branches are not zero, and batch statistics fit the data.
"""

import math
from typing import Any

import numpy as np

from benchmarks.zoo.subject import Subject

_SPREAD = 0.3
"""Standard deviation of the logarithm of a channel's size."""

_OUTLIERS, _LARGER = 0.01, 3.0
"""Share of the channels of a normalization that are larger, and how much."""

_MEAN = 0.7
"""Mean of what a batch normalization adds. With zero, activations cut off half of what they read, and a deep network of
random weights amplifies every error instead of averaging it, so that all recipes end at 0 dB."""

_BATCH = 24
"""Samples that batch statistics come from, in one batch: averages over small ones do not fit any sample."""


def make_realistic(subject: Subject, seed: int) -> None:
    """Change the weights of a module in place, and set its batch statistics."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for part in subject.module.modules():
            for name, weight in part.named_parameters(recurse=False):
                _change(part, name, weight)
    _set_batch_statistics(subject, seed)
    subject.module.eval()


def _change(part: Any, name: str, weight: Any) -> None:
    import torch

    if not weight.is_floating_point() or not weight.numel():
        return
    is_norm = "norm" in type(part).__name__.lower() or isinstance(part, torch.nn.modules.batchnorm._NormBase)
    constant = bool((weight == weight.flatten()[0]).all())
    if is_norm and name == "weight":
        weight.copy_(torch.exp(_SPREAD * torch.randn_like(weight)))
        weight[torch.rand(weight.shape) < _OUTLIERS] *= _LARGER
    elif is_norm and name == "bias":
        weight.copy_(_MEAN * isinstance(part, torch.nn.modules.batchnorm._BatchNorm) + 0.3 * torch.randn_like(weight))
    elif weight.dim() >= 2 and not constant:
        if weight.dim() > 3:
            _smooth(weight)
        factors = torch.exp(_SPREAD * torch.randn(weight.shape[0], *[1] * (weight.dim() - 1)))
        weight.mul_(factors * math.exp(-(_SPREAD**2)))
    elif constant and weight.dim() >= 2:
        weight.copy_(torch.randn_like(weight) / math.sqrt(max(1, weight[0].numel())))
    elif constant and float(weight.flatten()[0].abs()) < 0.5:
        # A bias, or the scale of a residual branch, which starts at about zero.
        weight.copy_(0.1 * torch.randn_like(weight) if name == "bias" else 0.3 + 0.1 * torch.randn_like(weight))


def _smooth(kernels: Any) -> None:
    """Give kernels of a convolution a mean: trained ones look at areas, random ones mostly at noise between pixels."""
    import torch

    axes = list(range(2, kernels.dim()))
    means = torch.randn(kernels.shape[:2] + (1,) * len(axes)) * kernels.square().mean().sqrt()
    kernels.add_(means).mul_(0.5**0.5)


def _set_batch_statistics(subject: Subject, seed: int) -> None:
    import torch

    norms = [part for part in subject.module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    subject.module.eval()
    momenta = {}
    for part in norms:
        part.reset_running_stats()
        part.momentum, momenta[part] = 1.0, part.momentum  # the statistics of this batch alone
        part.train()
    random = np.random.default_rng(seed)
    with torch.no_grad():
        drawn = [subject.draw(random) for _ in range(_BATCH)]
        batch = {name: torch.from_numpy(np.concatenate([one[name] for one in drawn])) for name in drawn[0]}
        subject.module(**batch, **subject.settings)
    for part in norms:
        part.momentum = momenta[part]
        part.eval()
