"""Losses whose kernels are recorded once and replayed: starting many small ones takes longer than running them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from quantry.errors import known_keywords

Loss = Callable[[Any, Any], Tensor]
"""From the module and a batch of the user's loader to what is minimised."""


class RecordedLoss:
    """Computes a loss on a GPU by replaying what its first call did, forward and backward.

    The module's switches must stay as they are at the first call, and the loss must not read numbers back from the
    device. Batches of another shape than the first, and those on a CPU, are computed as they would be without this.

    Attributes:
        loss: What is recorded.

    Example:
        >>> loss = RecordedLoss(lambda model, batch: criterion(model(batch[0]), batch[1]))  # doctest: +SKIP
        >>> loss(model, (images, labels)).backward()  # doctest: +SKIP
    """

    @known_keywords("RecordedLoss")
    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._step: Any = None
        self._kind: Any = None

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        leaves, form = tree_flatten(batch)
        if not all(torch.is_tensor(leaf) and leaf.is_cuda for leaf in leaves):
            return self.loss(module, batch)
        kind = (form, [(leaf.shape, leaf.dtype) for leaf in leaves], id(module))
        if self._step is None:
            plain = _Step(module, self.loss, form).train()
            self._step = torch.cuda.make_graphed_callables(plain, tuple(leaves), allow_unused_input=True)
            self._kind = kind
        if kind != self._kind:
            return self.loss(module, batch)
        found: Tensor = self._step(*leaves)
        return found


class _Step(nn.Module):  # type: ignore[misc]
    """The loss as a module, so that the gradients of its parameters are recorded."""

    def __init__(self, module: nn.Module, loss: Loss, form: Any) -> None:
        super().__init__()
        self.module = module
        self._loss, self._form = loss, form

    def forward(self, *leaves: Tensor) -> Tensor:
        return self._loss(self.module, tree_unflatten(leaves, self._form))
