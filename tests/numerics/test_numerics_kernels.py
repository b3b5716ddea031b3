"""The compiled library is there, is built from these sources, and gives the same bytes on every level."""

import build_kernels
import numpy as np
import pytest

from quantry.errors import InternalError
from quantry.numerics import kernels


def test_library_of_this_platform_is_loaded() -> None:
    compiled = kernels.loaded()
    assert compiled is not None, "run: python build_kernels.py"
    assert compiled.level == kernels.supported_levels()[-1]
    assert compiled.build_id == kernels.build_id() == build_kernels.build_id()


def test_unknown_level_is_an_error() -> None:
    with pytest.raises(InternalError, match="must be one of"):
        kernels.loaded("v9")


def test_build_id_says_numpy_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "loaded", lambda: None)
    assert kernels.build_id() == "numpy"


def test_arrays_that_c_cannot_read_are_refused() -> None:
    compiled, counts = kernels.loaded(), np.zeros(65536, np.uint32)
    assert compiled is not None
    for wrong in (np.zeros(4), np.zeros(8, np.float32)[::2]):
        with pytest.raises(InternalError, match="must be contiguous float32"):
            compiled.count_codes(wrong, counts)  # type: ignore[arg-type]
