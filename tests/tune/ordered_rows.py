"""The NumPy reference with its products in the order of the compiled kernel; slow, and equal to the last bit."""

import numpy as np

from quantry.tune.row_backends import NumpyRows
from quantry.tune.row_problem import RowProblem

REFRESH = 64
"""``REFRESH`` of ``train_rows.c``."""


def fused_multiply_add(left: np.ndarray, right: np.ndarray, addend: np.ndarray) -> np.ndarray:
    """Return ``left * right + addend`` of float32 arrays, rounded once."""
    product, addend = left.astype(np.float64) * right, addend.astype(np.float64)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    # Rounded to odd in float64, so that rounding to float32 afterwards is right.
    bits = total.view(np.int64)
    away = np.where((lost > 0) == (total > 0), 1, -1)
    odd = bits + np.where((lost != 0) & ((bits & 1) == 0), away, 0)
    return odd.view(np.float64).astype(np.float32)


def product_in_order(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``left @ right``, summed over k = 0, 1, 2, ..."""
    result = np.zeros((*left.shape[:2], right.shape[2]), np.float32)
    for k in range(right.shape[1]):
        result = fused_multiply_add(left[:, :, k : k + 1], right[:, None, k, :], result)
    return result


class OrderedRows(NumpyRows):
    """`NumpyRows` with the kernel's products: updated where few weights of a row changed, else from scratch."""

    def __init__(self, problem: RowProblem) -> None:
        super().__init__(problem)
        self._rows = problem

    def _product(self, weight: np.ndarray) -> np.ndarray:
        factor = self._rows.factor
        if factor is None:
            return product_in_order(weight, self._rows.gram)
        return product_in_order(product_in_order(weight, factor), factor.transpose(0, 2, 1))

    def _next_product(self, product: np.ndarray, before: np.ndarray, weight: np.ndarray, number: int) -> np.ndarray:
        change = weight - before
        count = (change != 0).sum(-1)
        few = count <= weight.shape[2] * 2 // 5
        if self._rows.factor is not None:
            few &= count == 0
        if (number + 1) % REFRESH == 0:
            few &= self._settled
        updated = product.copy()
        for k in range(weight.shape[2]):
            added = fused_multiply_add(change[:, :, k : k + 1], self._rows.gram[:, None, k, :], updated)
            updated = np.where(change[:, :, k : k + 1] != 0, added, updated)
        return np.where(few[:, :, None], updated, self._product(weight))
