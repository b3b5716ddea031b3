"""The stage decorator: a pure function whose results a memo can reuse, and checkpoints inside a running stage."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar

from quantry.errors import InternalError
from quantry.memo._blob import Storable
from quantry.memo._fingerprint import Digest, fingerprint
from quantry.memo._stores import Store

P = ParamSpec("P")
T = TypeVar("T", bound=Storable)

Environment = Callable[[Mapping[str, Any]], Mapping[str, str]]
"""From a call's arguments by name to everything else that changes the result's bytes, as texts by name."""


class Stage(Generic[P, T]):
    """A pure function from values to a `Storable` value; created by the decorator `stage`.

    Calling it calls the plain function and stores nothing; `Memo.run` reuses results.

    Attributes:
        name: The name in keys, traces and messages.
        version: Raised by hand whenever the same inputs give another result or the blob has another format.
        environment: What the result depends on besides the arguments, or None.
        stored: Whether results are stored; otherwise they are computed each time their value is needed.
        function: The plain function.
    """

    def __init__(
        self, function: Callable[P, T], name: str, version: int, environment: Environment | None, stored: bool = True
    ) -> None:
        self.name = name
        self.version = version
        self.environment = environment
        self.stored = stored
        self.function = function
        self._signature = inspect.signature(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the plain function."""
        return self.function(*args, **kwargs)

    @functools.cached_property
    def result_type(self) -> type[T]:
        """The class named by the return annotation, which may be defined after the stage.

        Raises:
            InternalError: There is no such annotation, or its class has no from_blob.
        """
        try:
            annotation: Any = typing.get_type_hints(self.function).get("return")
        except NameError as error:
            raise InternalError(
                f"A stage's annotations must be importable at run time; {error}; at stage {self.name!r}."
            ) from error
        cls = typing.get_origin(annotation) or annotation
        if not hasattr(cls, "from_blob"):
            raise InternalError(
                f"A stage's return annotation must be a class with from_blob; got {annotation!r}; "
                f"at stage {self.name!r}."
            )
        return typing.cast("type[T]", cls)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        """Return the arguments by parameter, with defaults applied.

        Raises:
            TypeError: The arguments do not fit the function's parameters.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def key(self, arguments: Mapping[str, object]) -> Digest:
        """Return the digest of everything a result depends on.

        Args:
            arguments: Parameter names to values or handles.

        Raises:
            InternalError: An argument has no defined content.
        """
        environment = dict(self.environment(arguments)) if self.environment is not None else {}
        inputs = {name: fingerprint(argument, f"{self.name}({name})") for name, argument in arguments.items()}
        return fingerprint(("stage", self.name, self.version, environment, inputs))

    def __repr__(self) -> str:
        return f"Stage({self.name}, version {self.version})"


def stage(
    *, name: str, version: int, environment: Environment | None = None, stored: bool = True
) -> Callable[[Callable[P, T]], Stage[P, T]]:
    """Turn a pure function into a stage, whose results a `Memo` reuses.

    The function takes values that have a `fingerprint` and returns the `Storable` that its return annotation names. It
    does not change its arguments and reads nothing else. Everything else that changes the bytes of its result, such as
    the version of the library that runs a model, comes from `environment`.

    Args:
        name: The name in keys, traces and messages.
        version: Raise it whenever the same inputs give another result.
        environment: A function from the call's arguments by name (values or handles) to texts by name, all part of the
            key. It gets the arguments because they may choose a device.
        stored: False if rerunning the stage is cheaper than storing and loading its result. Such a result is identified
            by its key, so that later stages can be reused without it.

    Example:
        ::

            @stage(name="scale", version=1)
            def scale(statistics: Statistics, plan: QuantPlan, options: ScaleOptions) -> QuantParams: ...
    """

    def decorate(function: Callable[P, T]) -> Stage[P, T]:
        return Stage(function, name, version, environment, stored)

    return decorate


_RUNNING: ContextVar[tuple[Store, Digest] | None] = ContextVar("quantry_running_stage", default=None)


@contextmanager
def checkpoints_under(store: Store | None, key: Digest) -> Iterator[None]:
    """Make `checkpoint` store under the key of the stage that runs in this block."""
    token = _RUNNING.set(None if store is None else (store, key))
    try:
        yield
    finally:
        _RUNNING.reset(token)


def checkpoint(name: str, cls: type[T], compute: Callable[[], T]) -> T:
    """Return an intermediate value of the running stage, stored by an earlier run that was killed, or computed now.

    The value must depend only on the stage's arguments and on the name, so that the result is the same whether the
    value was found or computed. Outside `Memo.run`, and without a store, it is always computed.

    Args:
        name: The checkpoint's name, unique within the stage.
        cls: The class of the value.
        compute: Computes the value.
    """
    scope = _RUNNING.get()
    if scope is None:
        return compute()
    store, stage_key = scope
    key = fingerprint(("part", stage_key, name))
    stored = store.lookup(key)
    blob = store.get(stored) if stored is not None else None
    if blob is not None:
        return cls.from_blob(replace(blob, notes=store.notes(key)))
    value = compute()
    written = value.to_blob()
    if written is not None:
        digest = written.digest()
        store.put(digest, written)
        store.remember(key, digest, written.notes)
    return value
