"""Small matrices are computed on one thread: OpenBLAS's threads wait for the next product in busy loops."""

import numpy as np
import pytest

from quantry.runtime import threads

library = threads._openblas()
pytestmark = pytest.mark.skipif(library is None, reason="NumPy was built without OpenBLAS")


@pytest.fixture(autouse=True)
def two_threads():
    before = library.get()
    library.set(2)
    yield
    library.set(before)


@pytest.mark.parametrize(("width", "count"), [(16, 1), (999, 1), (1000, 2), (4096, 2)])
def test_small_matrices_get_one_thread(width, count):
    with threads.blas_threads_for(width):
        assert library.get() == count
    assert library.get() == 2


def test_an_exception_restores_the_threads():
    with pytest.raises(np.linalg.LinAlgError), threads.blas_threads_for(2):
        np.linalg.cholesky(-np.eye(2))
    assert library.get() == 2
