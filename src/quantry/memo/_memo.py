"""Runs stages, reuses known results, and recomputes those whose blob is gone."""

import inspect
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from quantry.errors import InternalError, StageError, UserError
from quantry.memo._blob import Blob, Storable
from quantry.memo._fingerprint import Digest, fingerprint
from quantry.memo._stage import Stage, checkpoints_under
from quantry.memo._stores import Store
from quantry.memo._trace import Trace, TraceEntry
from quantry.notes import Note

T = TypeVar("T", bound=Storable)
ValueT = TypeVar("ValueT")

# How many earlier stages an error message names. A search may have run thousands.
_NAMED_STAGES = 8


@dataclass(frozen=True, eq=False)
class _Result(Generic[ValueT]):
    """A value with its digest: that of its content, or the key of the call for a stage that stores nothing."""

    value: ValueT
    digest: Digest

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(getattr(self.value, "notes", ()))


class Handle(Generic[ValueT]):
    """Stands for a stage's result: its digest at once, its value on demand.

    Created by `Memo.run`. The value is loaded or computed on first use and then stays in memory as long as the handle.
    Thread-safe: the value is produced once.

    Attributes:
        stage_name: The stage whose result it is.
        digest: Digest of the result's content, or the key of the call for a stage that stores nothing. It changes if
            the value had to be computed again and came out different.
        by_content: Whether the digest is that of the content.
    """

    def __init__(
        self,
        stage_name: str,
        digest: Digest,
        produce: Callable[[], _Result[ValueT]],
        *,
        by_content: bool = True,
        read_notes: Callable[[], tuple[Note, ...]] | None = None,
    ) -> None:
        self.stage_name = stage_name
        self.digest = digest
        self.by_content = by_content
        self._lock = threading.Lock()
        # Both are dropped once the value is there: they hold on to the inputs.
        self._produce: Callable[[], _Result[ValueT]] | None = produce
        self._read_notes = read_notes
        self._result: _Result[ValueT]

    @classmethod
    def of_value(cls, stage_name: str, value: ValueT) -> "Handle[ValueT]":
        """Return a handle for a value that was computed outside a memo, such as with a function of the user's.

        Args:
            stage_name: What to call it in messages.
            value: The value; anything that has a `fingerprint`.
        """
        result = _Result(value, fingerprint(value, stage_name))
        return cls(stage_name, result.digest, lambda: result)._loaded()

    @property
    def value(self) -> ValueT:
        """The result itself.

        Warns:
            UserWarning: The value had to be computed again and came out different.

        Raises:
            StageError: The value had to be computed again and the stage failed.
        """
        with self._lock:
            if self._produce is not None:
                self._result = self._produce()
                self.digest = self._result.digest
                self._produce = self._read_notes = None
            return self._result.value

    @property
    def notes(self) -> tuple[Note, ...]:
        """The result's notes, read from the store's index if the value is not in memory."""
        read_notes = self._read_notes
        if read_notes is not None:
            return read_notes()
        return tuple(getattr(self.value, "notes", ()))

    def _loaded(self) -> "Handle[ValueT]":
        _ = self.value
        return self

    def __fingerprint__(self) -> Digest:
        return self.digest

    def __repr__(self) -> str:
        return f"Handle({self.stage_name}, {self.digest.short})"


# A handle keeps its value in memory. As long as one is alive, running the same call on the same store returns that
# handle, also from another Memo, so that consecutive trials of a search do not read shared results from disk again. On
# the demo detector, a search of 16 calibration trials takes 2.5 s of CPU time with this and 7.4 s without.
_LIVE: WeakKeyDictionary[Store, WeakValueDictionary[Digest, Handle[Any]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Call(Generic[T]):
    """One stage with its arguments, by value or by handle, and the key of its result."""

    stage: Stage[..., T]
    bound: inspect.BoundArguments
    key: Digest

    def resolved(self) -> tuple["_Call[T]", inspect.BoundArguments]:
        """Return the call with its current key, and the arguments with handles replaced by their values.

        The key is taken again after the values were produced: an argument that had to be recomputed may have another
        digest than before, and the result must be stored under the key of what it was computed from.
        """
        values = inspect.BoundArguments(self.bound.signature, OrderedDict(_resolve(self.bound.arguments)))
        return replace(self, key=self.stage.key(self.bound.arguments)), values


class Memo:
    """Runs stages and stores their results, so that a trial costs only what it changes.

    The law: with a store, without one, and in any order of calls, the results are the same.

    A stored result can be lost, and computing it again can give something else if the machine differs in a way that no
    key covers. Then the new result replaces the old one with a warning. Its handle takes the new digest, so later
    stages are keyed by what they really read and run again.

    Thread-safe; two threads that ask for the same unknown result at once may both compute it.

    Args:
        store: Where results are stored; None stores nothing and computes everything.
        trace: Records what ran; a new one by default.
        verify_inputs: For tests: compute the digest of every argument before and after each call, and fail if a stage
            changed one or if a value read from the store differs from the stored one.

    Example:
        ::

            memo = Memo(MemoryStore())
            statistics = memo.run(observe, model, data)        # a Handle
            params = memo.run(scale, statistics, plan, options).value
    """

    def __init__(self, store: Store | None, trace: Trace | None = None, *, verify_inputs: bool = False) -> None:
        self.store = store
        self.trace = Trace() if trace is None else trace
        self.verify_inputs = verify_inputs
        self._lock = threading.Lock()
        self._live = WeakValueDictionary() if store is None else _LIVE.setdefault(store, WeakValueDictionary())

    def run(self, stage: Stage[..., T], /, *args: object, **kwargs: object) -> Handle[T]:
        """Return a handle for the stage's result for these arguments, computing it if it is unknown.

        Args:
            stage: The stage.
            *args: The function's positional arguments: values, handles, or tuples, lists and dicts of them.
            **kwargs: The function's keyword arguments, likewise.

        Raises:
            UserError: The stage rejected its input; raised unchanged.
            StageError: The stage failed otherwise; names the stage and the stages before it.
            InternalError: An argument has no defined content, or a check of `verify_inputs` failed.
        """
        started = time.perf_counter()
        bound = stage.bind(args, kwargs)
        call = _Call(stage, bound, stage.key(bound.arguments))
        stored = self._find(call)
        if stored is None and not stage.stored:
            return self._defer(call)
        if stored is None:
            asked = call
            call, values = asked.resolved()
            stored = self._find(call) if call.key != asked.key else None
            if stored is None:
                return self._compute(call, values)
        self.trace.add(TraceEntry(stage.name, call.key, "reused", time.perf_counter() - started, stored.digest))
        return stored

    def _find(self, call: _Call[T]) -> Handle[T] | None:
        if self.store is None:
            return None
        with self._lock:
            live = self._live.get(call.key)
        if live is not None or not call.stage.stored:
            return live
        result = self.store.lookup(call.key)
        return None if result is None else self._known(call, result)

    def _compute(self, call: _Call[T], values: inspect.BoundArguments) -> Handle[T]:
        result = self._execute(call, values)
        handle = Handle(call.stage.name, result.digest, lambda: result)._loaded()
        if self.store is not None:
            self.store.remember(call.key, result.digest, result.notes)
            with self._lock:
                self._live[call.key] = handle
        return handle

    def _defer(self, call: _Call[T]) -> Handle[T]:
        """Return a handle for a result that is not stored: identified by its key and computed on demand."""

        def produce() -> _Result[T]:
            current, values = call.resolved()
            self._forget_if_moved(call, current)
            return self._execute(current, values)

        return self._shared(call, Handle(call.stage.name, call.key, produce, by_content=False))

    def _known(self, call: _Call[T], digest: Digest) -> Handle[T]:
        """Return a handle for a result whose digest is in the index."""
        store = self.store
        assert store is not None
        return self._shared(
            call,
            Handle(
                call.stage.name,
                digest,
                lambda: self._load(call, digest, store) or self._recompute(call, digest, store),
                read_notes=lambda: store.notes(call.key),
            ),
        )

    def _shared(self, call: _Call[T], handle: Handle[T]) -> Handle[T]:
        """Return the handle that is alive for the same call, else this one, which others can find from now on."""
        if self.store is None:
            return handle
        with self._lock:
            return self._live.setdefault(call.key, handle)

    def _load(self, call: _Call[T], digest: Digest, store: Store) -> _Result[T] | None:
        """Read a result from the store; None if its blob is gone."""
        blob = store.get(digest)
        if blob is None:
            return None
        try:
            return _Result(call.stage.result_type.from_blob(replace(blob, notes=store.notes(call.key))), digest)
        except Exception as error:
            raise InternalError(
                "A stored result must be readable, or its stage must have another version; "
                f"reading result {digest} raised {error!r}; at stage {call.stage.name!r} version {call.stage.version}. "
                "Delete the store's directory as a workaround, and report this as a bug."
            ) from error

    def _recompute(self, call: _Call[T], expected: Digest, store: Store) -> _Result[T]:
        """Compute a known result again because its blob is gone."""
        current, values = call.resolved()
        if self._forget_if_moved(call, current):
            stored = self._find(current)
            if stored is not None:
                return _Result(stored.value, stored.digest)
        result = self._execute(current, values)
        if current.key == call.key and result.digest == expected:
            return result
        if current.key == call.key:
            warnings.warn(
                f"stage {call.stage.name!r} must return the same result for the same inputs, but computing a lost "
                f"result again gave {result.digest.short} instead of {expected.short}; the new one replaces it, and "
                "stages that read it run again",
                UserWarning,
                stacklevel=2,
            )
        store.remember(current.key, result.digest, result.notes)
        return result

    def _forget_if_moved(self, asked: _Call[T], current: _Call[T]) -> bool:
        """Return whether a call's key changed with its arguments; then no other caller may find its handle."""
        if asked.key == current.key:
            return False
        with self._lock:
            self._live.pop(asked.key, None)
        return True

    def _execute(self, call: _Call[T], values: inspect.BoundArguments) -> _Result[T]:
        """Call the function and put its result into the store."""
        stage = call.stage
        with self._verifying(call, values.arguments):
            started = time.perf_counter()
            with self._naming(stage), checkpoints_under(self.store, call.key):
                value = stage.function(*values.args, **values.kwargs)
            seconds = time.perf_counter() - started
        _check_type(value, stage)
        if stage.stored:
            with self._naming(stage):
                blob, digest = self._pack(value)
            if self.store is not None and blob is not None:
                self.store.put(digest, blob)
        else:
            digest = call.key
        self.trace.add(TraceEntry(stage.name, call.key, "computed", seconds, digest))
        return _Result(value, digest)

    def _pack(self, value: T) -> tuple[Blob | None, Digest]:
        blob = value.to_blob() if self.store is not None else None
        if blob is None or hasattr(type(value), "__fingerprint__"):
            return blob, fingerprint(value, "result")
        # The same digest that `fingerprint` returns, without writing the blob a second time.
        return blob, blob.digest()

    @contextmanager
    def _verifying(self, call: _Call[T], values: Mapping[str, object]) -> Iterator[None]:
        if not self.verify_inputs:
            yield
            return
        contents = _contents(values)
        for name, digest in _contents(call.bound.arguments).items():
            if digest != contents[name] and not _has_deferred(call.bound.arguments[name]):
                raise InternalError(
                    f"A value read from the store must be equal to the stored one; argument {name!r} is not; "
                    f"at stage {call.stage.name!r}. Compare to_blob and from_blob of its class."
                )
        yield
        for name, digest in _contents(values).items():
            if digest != contents[name]:
                raise InternalError(
                    f"A stage must not change its arguments; it changed {name!r}; at stage {call.stage.name!r}."
                )

    @contextmanager
    def _naming(self, stage: Stage[..., T]) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            earlier = [f"{entry.stage} ({entry.outcome})" for entry in self.trace.entries[-_NAMED_STAGES:]]
            raise StageError(
                f"A stage must return a result; {stage.name!r} raised {type(error).__name__}: {error}; "
                f"at stage {stage.name!r} after {', '.join(earlier) or 'no other stage'}."
            ) from error


def _contents(arguments: Mapping[str, object]) -> dict[str, Digest]:
    return {name: fingerprint(argument, name) for name, argument in arguments.items()}


def _has_deferred(argument: Any) -> bool:
    """Whether an argument contains a handle that is identified by a key instead of its content."""
    if isinstance(argument, Handle):
        return not argument.by_content
    if type(argument) is dict:
        argument = tuple(argument.values())
    return type(argument) in (tuple, list) and any(_has_deferred(item) for item in argument)


def _check_type(value: object, stage: Stage[..., T]) -> None:
    if not isinstance(value, stage.result_type):
        raise InternalError(
            f"A stage must return the type of its annotation, {stage.result_type.__qualname__}; "
            f"got {type(value).__qualname__}; at stage {stage.name!r}."
        )


def _resolve(argument: Any) -> Any:
    """Replace handles by their values, also inside tuples, lists and dicts."""
    if isinstance(argument, Handle):
        return argument.value
    if type(argument) in (tuple, list):
        return type(argument)(_resolve(item) for item in argument)
    if type(argument) is dict:
        return {name: _resolve(item) for name, item in argument.items()}
    return argument
