"""Notes belong to calls, and a recomputed result that differs replaces the old one."""

import dataclasses
import itertools
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from memo_stages import CountingStore, Numbers, chain, count, scale, shift

from quantry.memo import (
    Blob,
    DirectoryStore,
    Handle,
    Memo,
    MemoryStore,
    Store,
    fingerprint,
    stage,
)
from quantry.notes import Note


@dataclasses.dataclass(frozen=True)
class Noted(Numbers):
    """A value with notes, which are not part of its identity."""

    notes: tuple[Note, ...] = dataclasses.field(default=(), compare=False)

    def to_blob(self) -> Blob | None:
        return Blob(arrays={"data": self.data}, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        return cls(blob.arrays["data"], blob.notes)


@stage(name="noted", version=1)
def noted(text: str) -> Noted:
    return Noted(np.ones(2), (Note.of(text),))


class TestNotes:
    @pytest.mark.parametrize("kind", ["memory", "directory"])
    def test_equal_contents_with_different_notes_share_a_digest_and_keep_their_notes(
        self, kind: str, tmp_path: Path
    ) -> None:
        store: Store = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
        first, second = (Memo(store).run(noted, text) for text in ("one", "two"))
        assert first.digest == second.digest
        del first, second
        for text in ("one", "two"):
            handle = Memo(store).run(noted, text)
            assert handle.notes == (Note.of(text),)
            assert handle.value.notes == (Note.of(text),)

    def test_later_stages_run_once_for_equal_contents_with_different_notes(self) -> None:
        memo = Memo(MemoryStore())
        memo.run(scale, memo.run(noted, "one"), by=2.0)
        memo.run(scale, memo.run(noted, "two"), by=2.0)
        assert (memo.trace.computed("scale"), memo.trace.reused("scale")) == (1, 1)

    def test_notes_of_a_known_result_are_read_without_its_blob(self) -> None:
        store = CountingStore()
        Memo(store).run(noted, "one")
        assert tuple(map(str, Memo(store).run(noted, "one").notes)) == ("one",)
        assert store.gets == 0

    def test_notes_survive_the_loss_of_the_blob(self) -> None:
        store = MemoryStore(limit_bytes=1)
        Memo(store).run(noted, "one")
        handle = Memo(store).run(noted, "one")
        assert handle.notes == (Note.of("one"),) == handle.value.notes == handle.notes

    def test_notes_of_a_result_that_is_not_stored(self) -> None:
        memo = Memo(MemoryStore())
        assert memo.run(shift, memo.run(count, 3)).notes == ()


class Dice:
    """A store that loses every blob, and a chain whose first stage returns another value each time."""

    def __init__(self) -> None:
        self.store = MemoryStore(limit_bytes=1)
        numbers = itertools.count()

        @stage(name="dice", version=1)
        def dice() -> Numbers:
            return Numbers(np.array([float(next(numbers))]))

        self.dice = dice

    def chain(self, memo: Memo) -> tuple[Handle[Numbers], Handle[Numbers]]:
        thrown = memo.run(self.dice)
        return thrown, memo.run(scale, thrown, by=10.0)


DIFFERENT = r"stage 'dice' must return the same result .* gave [0-9a-f]{12} instead of [0-9a-f]{12}; the new one"


class TestRecomputedResultThatDiffers:
    def test_replaces_the_old_one_with_a_warning(self) -> None:
        given = Dice()
        old = Memo(given.store).run(given.dice).digest
        handle = Memo(given.store).run(given.dice)
        assert handle.digest == old
        with pytest.warns(UserWarning, match=DIFFERENT):
            assert handle.value.data == [1]
        assert handle.digest == fingerprint(handle.value) != old
        assert Memo(given.store).run(given.dice).digest == handle.digest

    def test_moves_the_keys_of_later_stages(self) -> None:
        given = Dice()
        given.chain(Memo(given.store))
        thrown, scaled = given.chain(memo := Memo(given.store))
        assert memo.trace.computed("scale") == 0
        with pytest.warns(UserWarning, match=DIFFERENT):
            assert scaled.value.data == [10]
        assert thrown.value.data == [1]
        assert scaled.digest == fingerprint(scaled.value)
        # Both new results are known now, and neither was computed from an old one.
        del scaled
        again = Memo(given.store)
        assert again.run(scale, thrown, by=10.0).digest == fingerprint(Numbers(np.array([10.0])))
        assert again.trace.computed("scale") == 0

    def test_reuses_what_is_known_for_the_new_content(self) -> None:
        given = Dice()
        known = Memo(given.store).run(scale, Numbers(np.array([1.0])), by=3.0)
        Memo(given.store).run(given.dice)
        memo = Memo(given.store)
        with pytest.warns(UserWarning, match=DIFFERENT):
            handle = memo.run(scale, memo.run(given.dice), by=3.0)
        assert handle is known
        assert memo.trace.computed("scale") == 0

    def test_moves_a_result_that_is_not_stored(self) -> None:
        given = Dice()
        Memo(given.store).run(given.dice)
        memo = Memo(given.store)
        thrown = memo.run(given.dice)
        shifted = memo.run(shift, thrown)
        before = shifted.digest
        with pytest.warns(UserWarning, match=DIFFERENT):
            assert shifted.value.data == [2]
        assert shifted.digest != before
        assert memo.run(shift, thrown).digest == shifted.digest

    def test_equal_result_causes_no_warning(self) -> None:
        store = MemoryStore(limit_bytes=1)
        chain(Memo(store))
        np.testing.assert_array_equal(chain(Memo(store)).value.data, [12])
