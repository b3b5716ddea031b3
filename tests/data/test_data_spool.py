"""Data that can be read once: what interrupts the reading must not make fewer samples pass for all of them."""

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from quantry.data.spool import Spool
from quantry.errors import DataError, StoreError
from quantry.graph.float_model import InputSignature

INPUTS = (InputSignature("x", np.dtype(np.float32), (1, 4)),)


def samples(count: int, failure: BaseException | None = None, at: int = -1) -> Iterator[object]:
    array = np.zeros((1, 4), np.float32)  # filled again and again, as readers do
    for index in range(count):
        if index == at and failure is not None:
            raise failure
        array[:] = index
        yield {"x": array}


def numbers(spool: Spool) -> list[float]:
    return [float(sample["x"][0, 0]) for sample in spool.read()]  # type: ignore[index]


def test_digest_taken_while_drawing_is_that_of_what_was_drawn_before() -> None:
    nearby, before = Spool(samples(40), INPUTS), Spool(samples(40), INPUTS)
    assert numbers(before) == list(range(40))
    assert nearby.digest(25) == before.digest(25)
    assert nearby.digest(None) == before.digest(None)
    assert (nearby.size, numbers(nearby)) == (40, list(range(40)))


def test_copy_for_another_process_has_all_samples_and_the_same_digest() -> None:
    spool = Spool(samples(12), INPUTS)
    spool.digest(5)
    other = pickle.loads(pickle.dumps(spool))
    assert numbers(other) == numbers(spool) == list(range(12))
    assert other.digest(None) == spool.digest(None)


@pytest.mark.parametrize(
    ("failure", "afterwards"), [(ValueError("bad file"), "bad file"), (KeyboardInterrupt(), "without interruption")]
)
def test_reader_that_ends_midway_never_passes_for_a_whole(failure: BaseException, afterwards: str) -> None:
    spool = Spool(samples(6, failure, at=3), INPUTS)
    with pytest.raises(type(failure)):
        spool.digest(None)
    assert spool.digest(3) == Spool(samples(3), INPUTS).digest(None)
    for again in (lambda: spool.digest(None), lambda: numbers(spool)):
        with pytest.raises((ValueError, DataError), match=afterwards):
            again()
    assert spool.size is None


def test_sample_that_could_not_be_kept_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(samples(6), INPUTS)
    spool.digest(2)

    def full(_content: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(spool, "_append", full)
        with pytest.raises(StoreError):
            spool.digest(None)
    with pytest.raises(StoreError, match="sample 2"):
        numbers(spool)
