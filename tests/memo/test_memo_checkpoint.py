"""Checkpoints of a running stage survive an interruption."""

from dataclasses import dataclass
from functools import partial
from typing import Self

import pytest

from quantry.memo import Blob, Memo, MemoryStore, checkpoint, stage

computed: list[str] = []
interrupted: list[int] = []


@dataclass(frozen=True)
class Number:
    value: int

    def to_blob(self) -> Blob:
        return Blob(meta={"value": self.value})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        return cls(blob.meta["value"])


def piece(name: str, value: int) -> Number:
    computed.append(name)
    return Number(value)


@stage(name="adder", version=1)
def adder(limit: int, factor: int) -> Number:
    total = 0
    for number in range(3):
        compute = partial(piece, f"piece {number}", number * factor)
        total += checkpoint(f"piece {number}", Number, compute).value
        if number == limit and not interrupted:
            interrupted.append(number)
            raise KeyboardInterrupt
    return Number(total)


@pytest.fixture(autouse=True)
def forget() -> None:
    computed.clear()
    interrupted.clear()


def test_next_run_finds_the_checkpoints_of_an_interrupted_stage() -> None:
    memo = Memo(MemoryStore())
    with pytest.raises(KeyboardInterrupt):
        memo.run(adder, 1, 5)
    assert memo.run(adder, 1, 5).value == Number(15)
    assert computed == ["piece 0", "piece 1", "piece 2"]


def test_checkpoints_belong_to_the_arguments_of_their_stage() -> None:
    memo = Memo(MemoryStore())
    assert memo.run(adder, 99, 1).value == Number(3)
    assert memo.run(adder, 99, 2).value == Number(6)
    assert len(computed) == 6


def test_without_a_store_or_a_memo_every_checkpoint_is_computed() -> None:
    for _ in range(2):
        assert Memo(None).run(adder, 99, 1).value == adder(99, 1) == Number(3)
    assert len(computed) == 12
