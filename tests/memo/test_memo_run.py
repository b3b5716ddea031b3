import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memo_stages import Bulky, CountingStore, Forgetful, Numbers, chain, count, inflate, scale, shift, total

from quantry.errors import DataError, InternalError, StageError
from quantry.memo import (
    Blob,
    DirectoryStore,
    Environment,
    Memo,
    MemoryStore,
    Store,
    Trace,
    fingerprint,
    stage,
)


def test_calling_a_stage_calls_the_plain_function() -> None:
    np.testing.assert_array_equal(count(3, start=1).data, [1, 2, 3])
    assert (count.__name__, count.__doc__, repr(count)) == ("count", "Count from a start.", "Stage(count, version 1)")


def test_known_result_is_reused() -> None:
    memo = Memo(MemoryStore())
    first = chain(memo)
    second = chain(Memo(memo.store, memo.trace))
    assert first.digest == second.digest
    np.testing.assert_array_equal(second.value.data, [12])
    assert [(memo.trace.computed(name), memo.trace.reused(name)) for name in ("count", "scale", "total")] == [
        (1, 1)
    ] * 3


def test_known_chain_reads_no_blob() -> None:
    store = CountingStore()
    chain(Memo(store))
    handle = chain(Memo(store))
    assert store.gets == 0
    np.testing.assert_array_equal(handle.value.data, [12])
    assert handle.value is handle.value
    assert store.gets == 1


def test_changed_option_computes_only_what_depends_on_it() -> None:
    store, trace = CountingStore(), Trace()
    chain(Memo(store))
    np.testing.assert_array_equal(chain(Memo(store, trace), by=3.0).value.data, [18])
    assert [trace.computed(name) for name in ("count", "scale", "total")] == [0, 1, 1]
    assert store.gets == 1


def test_without_store_everything_is_computed_and_digests_are_the_same() -> None:
    memo = Memo(None)
    assert chain(memo).digest == chain(memo).digest == chain(Memo(MemoryStore())).digest
    assert [memo.trace.computed(name) for name in ("count", "scale", "total")] == [2, 2, 2]


@pytest.mark.parametrize("order", list(itertools.permutations([(3, 1.0), (3, 2.0), (5, 2.0)])), ids=str)
def test_store_and_order_of_trials_do_not_change_results(order: tuple[Any, ...], tmp_path: Path) -> None:
    memo = Memo(DirectoryStore(tmp_path), verify_inputs=True)
    for size, by in order:
        plain = total(scale(count(size), by=by))
        for attempt in (memo, Memo(memo.store), Memo(None)):
            handle = chain(attempt, size, by)
            assert handle.value.to_blob() == plain.to_blob()
            assert handle.digest == fingerprint(plain)


def test_handle_and_value_make_the_same_key() -> None:
    memo = Memo(MemoryStore())
    handle = memo.run(count, 4)
    memo.run(scale, handle, by=2.0)
    memo.run(scale, handle.value, by=2.0)
    memo.run(scale, numbers=Numbers(np.arange(4.0)), by=2.0)
    assert (memo.trace.computed("scale"), memo.trace.reused("scale")) == (1, 2)


def test_defaults_and_names_of_arguments_make_the_same_key() -> None:
    memo = Memo(MemoryStore())
    memo.run(count, 4)
    memo.run(count, 4, 0)
    memo.run(count, start=0, size=4)
    assert (memo.trace.computed("count"), memo.trace.reused("count")) == (1, 2)


def test_handles_inside_variable_arguments_are_resolved() -> None:
    memo = Memo(MemoryStore())
    one, two = memo.run(count, 2), memo.run(count, 3)
    assert memo.run(total, one, two, rest=one).value.data == [5]
    assert memo.run(total, one, two, other=one).value.data == [5]
    assert memo.trace.computed("total") == 2


def versioned(version: int, name: str = "v", environment: Environment | None = None) -> Any:
    @stage(name=name, version=version, environment=environment)
    def constant() -> Numbers:
        return Numbers(np.ones(1))

    return constant


def test_name_version_and_environment_are_part_of_the_key() -> None:
    memo = Memo(MemoryStore())
    stages = [
        versioned(1),
        versioned(2),
        versioned(1, name="w"),
        versioned(1, environment=lambda _arguments: {"library": "1.0"}),
        versioned(1, environment=lambda _arguments: {"library": "1.1"}),
    ]
    for each in stages:
        memo.run(each)
    assert [entry.outcome for entry in memo.trace.entries] == ["computed"] * 5
    assert len({entry.key for entry in memo.trace.entries}) == 5
    assert len({entry.result for entry in memo.trace.entries}) == 1


def test_scheme_of_keys_is_that_of_existing_stores() -> None:
    constant = versioned(3, environment=lambda _arguments: {"library": "1.0"})
    assert constant.key({}).startswith("20190049a31af3e6")
    assert scale.key({"numbers": Numbers(np.arange(4.0)), "by": 2.0}).startswith("dc11b03c684ddfd6")


def test_live_handles_share_their_value() -> None:
    memo = Memo(CountingStore())
    first = memo.run(count, 4)
    assert memo.run(count, 4).value is first.value


@pytest.fixture(params=["evicted", "truncated"])
def lossy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Callable[[], None]]]:
    """A store, and a way to lose all its blobs."""
    store = DirectoryStore(tmp_path)

    def lose() -> None:
        for part in tmp_path.glob("blobs/*/*/arrays.safetensors"):
            if request.param == "truncated":
                part.write_bytes(part.read_bytes()[:20])
            else:
                shutil.rmtree(part.parent)

    return store, lose


def test_lost_blob_is_computed_and_stored_again(lossy: Any) -> None:
    store, lose = lossy
    chain(Memo(store))
    lose()
    memo = Memo(store)
    handle = chain(memo)
    assert [entry.outcome for entry in memo.trace.entries] == ["reused"] * 3
    np.testing.assert_array_equal(handle.value.data, [12])
    assert [entry.stage for entry in memo.trace.entries if entry.outcome == "computed"] == ["count", "scale", "total"]
    fresh = Memo(store)
    np.testing.assert_array_equal(chain(fresh).value.data, [12])
    assert fresh.trace.computed("total") == 0


def test_value_too_large_to_store_is_known_and_computed_when_needed() -> None:
    store = MemoryStore()
    digest = Memo(store).run(inflate, Memo(store).run(count, 2)).digest
    memo = Memo(store)
    handle = memo.run(inflate, memo.run(count, 2))
    assert memo.trace.computed("inflate") == 0
    assert handle.digest == digest
    np.testing.assert_array_equal(handle.value.data, [0, 0, 0, 1, 1, 1])
    assert memo.trace.computed("inflate") == 1
    np.testing.assert_array_equal(memo.run(total, handle).value.data, [3])


def test_value_in_memory_is_shared_with_another_memo_on_the_same_store() -> None:
    store = MemoryStore()
    held = Memo(store).run(count, 2)
    assert Memo(store).run(count, 2).value is held.value
    assert Memo(MemoryStore()).run(count, 2).value is not held.value


def test_value_is_produced_once_for_many_threads() -> None:
    store = CountingStore()
    Memo(store).run(count, 4)
    handle, gate = Memo(store).run(count, 4), threading.Barrier(8)

    def ask(_: int) -> Numbers:
        gate.wait(10)
        return handle.value

    with ThreadPoolExecutor(8) as pool:
        assert len({id(value) for value in pool.map(ask, range(8))}) == 1
    assert store.gets == 1


def failing(error: BaseException) -> Any:
    @stage(name="fail", version=1)
    def fail(numbers: Numbers) -> Numbers:
        raise error

    return fail


def test_failure_names_the_stage_and_what_ran_before() -> None:
    memo = Memo(MemoryStore())
    cause = ZeroDivisionError("by zero")
    memo.run(count, 1)
    with pytest.raises(
        StageError, match=r"'fail' raised ZeroDivisionError: by zero; .* after count \(computed\), count \(reused\)\."
    ) as caught:
        memo.run(failing(cause), memo.run(count, 1))
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("error", [DataError("no samples"), KeyboardInterrupt()], ids=repr)
def test_users_errors_and_interrupts_pass_unchanged(error: BaseException) -> None:
    memo = Memo(MemoryStore())
    with pytest.raises(type(error)) as caught:
        memo.run(failing(error), memo.run(count, 1))
    assert caught.value is error


def test_internal_error_of_a_stage_is_wrapped() -> None:
    with pytest.raises(StageError, match="after no other stage"):
        Memo(None).run(failing(InternalError("broken")), Numbers(np.ones(1)))


def test_errors_are_not_stored() -> None:
    attempts = iter([ValueError("first"), None])

    @stage(name="flaky", version=1)
    def flaky() -> Numbers:
        error = next(attempts)
        if error is not None:
            raise error
        return Numbers(np.ones(1))

    memo = Memo(MemoryStore())
    with pytest.raises(StageError):
        memo.run(flaky)
    np.testing.assert_array_equal(memo.run(flaky).value.data, [1])


def test_argument_without_content_is_rejected_with_its_position() -> None:
    with pytest.raises(InternalError, match=r"got builtins\.object; at scale\(by\)\."):
        Memo(None).run(scale, Numbers(np.ones(1)), by=object())


def test_arguments_that_do_not_fit_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="missing a required"):
        Memo(None).run(scale, by=1.0)


@stage(name="spoil", version=1)
def spoil(numbers: Numbers, names: list[str]) -> Numbers:
    names.append("new")
    return Numbers(numbers.data + 1)


@stage(name="overwrite", version=1)
def overwrite(numbers: Numbers) -> Numbers:
    numbers.data[0] = 9
    return Numbers(numbers.data + 1)


def test_verify_inputs_finds_a_stage_that_changes_its_argument() -> None:
    numbers = Numbers(np.zeros(2))
    Memo(MemoryStore()).run(spoil, numbers, [])
    with pytest.raises(InternalError, match="must not change its arguments; it changed 'names'; at stage 'spoil'"):
        Memo(MemoryStore(), verify_inputs=True).run(spoil, numbers, [])
    with pytest.raises(InternalError, match="it changed 'numbers'"):
        Memo(None, verify_inputs=True).run(overwrite, numbers)


def test_verify_inputs_finds_a_value_that_does_not_survive_the_store() -> None:
    @stage(name="forget", version=1)
    def forget() -> Forgetful:
        return Forgetful(np.ones(1))

    store = MemoryStore()
    Memo(store).run(forget)
    memo = Memo(store, verify_inputs=True)
    with pytest.raises(InternalError, match="must be equal to the stored one; argument 'numbers'"):
        memo.run(scale, memo.run(forget), by=1.0)


def test_unreadable_blob_needs_another_version() -> None:
    memo, other = Memo(MemoryStore()), MemoryStore()
    handle = memo.run(count, 2)
    other.remember(memo.trace.entries[0].key, handle.digest)
    other.put(handle.digest, Blob(meta={"another": "form"}))
    with pytest.raises(
        InternalError, match=r"another version; .* raised KeyError\('data'\); at stage 'count' version 1"
    ):
        _ = Memo(other).run(count, 2).value


def test_result_of_another_type_is_rejected() -> None:
    @stage(name="liar", version=1)
    def liar() -> Bulky:
        return Numbers(np.ones(1))  # type: ignore[return-value]

    with pytest.raises(InternalError, match="type of its annotation, Bulky; got Numbers; at stage 'liar'"):
        Memo(None).run(liar)


def test_stage_without_a_usable_annotation_is_rejected() -> None:
    @stage(name="vague", version=1)
    def vague() -> int:
        return 1

    with pytest.raises(InternalError, match="class with from_blob; got <class 'int'>; at stage 'vague'"):
        Memo(None).run(vague)


def test_return_annotation_may_be_defined_later() -> None:
    @stage(name="early", version=1)
    def early() -> "Late":
        return Late(np.ones(1))

    store = MemoryStore()
    Memo(store).run(early)
    assert isinstance(Memo(store).run(early).value, Late)


class Late(Numbers):
    pass


def test_trace_has_rows_for_printing() -> None:
    memo = Memo(MemoryStore())
    handle = memo.run(count, 4)
    memo.run(count, 4)
    rows = memo.trace.table()
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("count", "computed", handle.digest.short),
        ("count", "reused", handle.digest.short),
    ]
    assert all(float(row[2]) >= 0 for row in rows)
    assert len(rows[0]) == len(Trace.columns)
    assert repr(handle) == f"Handle(count, {handle.digest.short})"


def test_result_of_a_stage_that_stores_nothing_is_computed_on_demand() -> None:
    memo = Memo(store := MemoryStore(), verify_inputs=True)
    numbers = memo.run(count, 3)
    promise = memo.run(shift, numbers)
    assert memo.trace.computed("shift") == 0
    np.testing.assert_array_equal(promise.value.data, [1, 2, 3])
    assert promise.value is promise.value
    assert memo.trace.computed("shift") == 1
    assert store.lookup(promise.digest) is None


def test_later_stages_are_reused_without_a_result_that_is_not_stored() -> None:
    store = MemoryStore()
    first = Memo(store, verify_inputs=True)
    expected = first.run(total, first.run(shift, first.run(count, 3))).value
    again = Memo(store)
    np.testing.assert_array_equal(again.run(total, again.run(shift, again.run(count, 3))).value.data, expected.data)
    assert again.trace.computed("shift") == 0
    assert again.trace.reused("total") == 1


def test_result_that_is_not_stored_is_shared_while_it_is_in_memory() -> None:
    memo = Memo(MemoryStore())
    held = memo.run(shift, memo.run(count, 3))
    assert memo.run(shift, memo.run(count, 3)) is held
    without_store = Memo(None)
    assert without_store.run(shift, without_store.run(count, 3)).digest == held.digest
