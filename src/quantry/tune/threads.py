"""How many threads torch uses.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SMALL = 200_000


@contextmanager
def threads_for(elements: int) -> Iterator[None]:
    """Compute on one thread for the duration of a block where tensors are small.

    Threads that wait for each other cost more than they save there, and beside another busy process a hundredfold.

    Args:
        elements: Numbers in what is computed on.
    """
    before = torch.get_num_threads()
    if elements >= _SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
