"""Runs stages, and runs none twice."""

import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from quantry.errors import InternalError, StageError, UserError
from quantry.memo._blob import Blob
from quantry.memo._digest import Digest
from quantry.memo._fingerprint import fingerprint
from quantry.memo._handle import Handle
from quantry.memo._part import running
from quantry.memo._stage import Stage
from quantry.memo._storable import Storable
from quantry.memo._store import Store
from quantry.memo._trace import Trace, TraceEntry

T = TypeVar("T", bound=Storable)

# How many earlier stages an error message names: a search may have run thousands.
_NAMED_STAGES = 8


# Whoever holds a handle keeps its value in memory; asking the same store for the same result then shares it, also
# through another Memo: the second of two calls reads nothing that the first still holds.
_LIVE: WeakKeyDictionary[Store, WeakValueDictionary[Digest, Handle[Any]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Call(Generic[T]):
    """One stage with its arguments, by value or by handle, and the key of its result."""

    stage: Stage[..., T]
    bound: inspect.BoundArguments
    key: Digest


class Memo:
    """Runs stages and keeps their results in a store, so that a trial costs only what it changes.

    The law: with a store, without one, and in any order of calls, the results are the same.

    Safe to use from many threads; two that ask for the same unknown result at once may both compute it.

    Args:
        store: Where results are kept; None keeps nothing and computes everything.
        trace: Where to write down what ran; a new one unless given.
        verify_inputs: For tests: take the digest of every argument before and after each call, and fail when a stage
            changed one, or when a value read from the store is not the value that was put there.

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
        """Return a handle on the stage's result for these arguments, computing it if it is not known.

        Args:
            stage: The stage.
            *args: The function's positional arguments: values, handles, or tuples, lists and dicts of them.
            **kwargs: The function's arguments by name, likewise.

        Raises:
            UserError: The stage found the input at fault; raised as it is.
            StageError: The stage failed otherwise; names the stage and the stages before it.
            InternalError: An argument has no defined content, or a check of `verify_inputs` failed.
        """
        started = time.perf_counter()
        bound = stage.bind(args, kwargs)
        call = _Call(stage, bound, stage.key(bound.arguments))
        known = self._find(call)
        if known is None:
            return self._compute(call) if stage.keep else self._promise(call)
        self.trace.add(TraceEntry(stage.name, call.key, "reused", time.perf_counter() - started, known.digest))
        return known

    def _find(self, call: _Call[T]) -> Handle[T] | None:
        if self.store is None:
            return None
        with self._lock:
            live = self._live.get(call.key)
        if live is not None or not call.stage.keep:
            return live
        result = self.store.lookup(call.key)
        return None if result is None else self._share(call, result)

    def _compute(self, call: _Call[T]) -> Handle[T]:
        value, result = self._execute(call, expected=None)
        handle = Handle(call.stage.name, result, lambda: value)
        # Taking the value now lets go of the way to produce it.
        _ = handle.value
        if self.store is not None:
            self.store.remember(call.key, result)
            with self._lock:
                self._live[call.key] = handle
        return handle

    def _promise(self, call: _Call[T]) -> Handle[T]:
        """Return a handle on a result that nobody keeps: it goes by its key, and is made on demand."""
        handle: Handle[T] = Handle(call.stage.name, call.key, lambda: self._execute(call, expected=None)[0], kept=False)
        if self.store is None:
            return handle
        with self._lock:
            return self._live.setdefault(call.key, handle)

    def _share(self, call: _Call[T], result: Digest) -> Handle[T]:
        with self._lock:
            handle: Handle[T] = Handle(call.stage.name, result, lambda: self._recover(call, result))
            return self._live.setdefault(call.key, handle)

    def _recover(self, call: _Call[T], result: Digest) -> T:
        """Load a known result, or compute it again when its blob is gone."""
        blob = self.store.get(result) if self.store is not None else None
        if blob is None:
            value, _ = self._execute(call, expected=result)
            return value
        try:
            return call.stage.result_type.from_blob(blob)
        except Exception as error:
            raise InternalError(
                f"A stored result must be readable, or its stage have another version; {error!r} came from reading "
                f"result {result}; at stage {call.stage.name!r} version {call.stage.version}. "
                "Deleting the store's directory helps for now."
            ) from error

    def _execute(self, call: _Call[T], expected: Digest | None) -> tuple[T, Digest]:
        """Call the function on the values of its arguments, and put its result into the store."""
        values = inspect.BoundArguments(call.bound.signature, OrderedDict(_resolve(call.bound.arguments)))
        with self._verifying(call, values.arguments):
            started = time.perf_counter()
            with self._naming(call.stage), running(self.store, call.key):
                value = call.stage.function(*values.args, **values.kwargs)
            seconds = time.perf_counter() - started
        _check_type(value, call.stage)
        if not call.stage.keep:
            self.trace.add(TraceEntry(call.stage.name, call.key, "computed", seconds, call.key))
            return value, call.key
        with self._naming(call.stage):
            blob, result = self._pack(value)
        if expected is not None and result != expected:
            raise InternalError(
                "A stage must give the same result for the same inputs, but this one is not deterministic; got result "
                f"{result} after {expected}; at stage {call.stage.name!r}. Deleting the store's directory helps if a "
                "library was exchanged since the first result."
            )
        if self.store is not None and blob is not None:
            self.store.put(result, blob)
        self.trace.add(TraceEntry(call.stage.name, call.key, "computed", seconds, result))
        return value, result

    def _pack(self, value: T) -> tuple[Blob | None, Digest]:
        blob = value.to_blob() if self.store is not None else None
        if blob is None or hasattr(type(value), "__fingerprint__"):
            return blob, fingerprint(value, "result")
        # The same digest, without asking the value to write its blob again.
        return blob, blob.digest()

    @contextmanager
    def _verifying(self, call: _Call[T], values: Mapping[str, object]) -> Iterator[None]:
        if not self.verify_inputs:
            yield
            return
        before = _contents(values)
        for name, digest in _contents(call.bound.arguments).items():
            if digest != before[name] and not _holds_promise(call.bound.arguments[name]):
                raise InternalError(
                    f"A value read back from the store must be the value that was put there; argument {name!r} is "
                    f"not; at stage {call.stage.name!r}. Compare to_blob and from_blob of its class."
                )
        yield
        for name, digest in _contents(values).items():
            if digest != before[name]:
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


def _holds_promise(argument: Any) -> bool:
    """Whether an argument has a handle in it that goes by a key, not by its content."""
    if isinstance(argument, Handle):
        return not argument.kept
    if type(argument) is dict:
        argument = tuple(argument.values())
    return type(argument) in (tuple, list) and any(_holds_promise(item) for item in argument)


def _check_type(value: object, stage: Stage[..., T]) -> None:
    if not isinstance(value, stage.result_type):
        raise InternalError(
            f"A stage must return what its annotation says, {stage.result_type.__qualname__}; "
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
