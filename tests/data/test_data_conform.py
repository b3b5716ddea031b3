import numpy as np
import pytest

from quantry.data.conform import conform
from quantry.errors import DataError
from quantry.graph.float_model import InputSignature


def test_empty_cache_of_a_language_model_is_a_sample() -> None:
    inputs = (
        InputSignature("ids", np.dtype(np.int64), ("batch", "length")),
        InputSignature("past", np.dtype(np.float32), ("batch", 4, "past", 8)),
    )
    sample = {"ids": np.ones((1, 3), np.int64), "past": np.zeros((1, 4, 0, 8), np.float32)}
    assert conform(sample, inputs, 0)["past"].shape == (1, 4, 0, 8)
    with pytest.raises(DataError, match="at least one value"):
        conform({**sample, "ids": np.ones((1, 0), np.int64)}, inputs, 0)
