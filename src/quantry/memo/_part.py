"""Parts of a stage's result, kept while the stage still runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from quantry.memo._digest import Digest
from quantry.memo._fingerprint import fingerprint
from quantry.memo._storable import Storable
from quantry.memo._store import Store

T = TypeVar("T", bound=Storable)

_RUNNING: ContextVar[tuple[Store, Digest] | None] = ContextVar("quantry_running_stage", default=None)


@contextmanager
def running(store: Store | None, key: Digest) -> Iterator[None]:
    """Let `part` keep what it computes under the key of the stage that runs in this block."""
    token = _RUNNING.set(None if store is None else (store, key))
    try:
        yield
    finally:
        _RUNNING.reset(token)


def part(name: str, cls: type[T], compute: Callable[[], T]) -> T:
    """Return a part of the running stage's result, from the store if an earlier run that was killed got as far.

    The part must follow from the stage's arguments and its name alone, so that it makes no difference to the result
    whether it was found or computed. Outside of `Memo.run`, and without a store, it is computed.

    Args:
        name: The part's name, unique within the stage.
        cls: The class of the part.
        compute: Computes it.
    """
    scope = _RUNNING.get()
    if scope is None:
        return compute()
    store, stage_key = scope
    key = fingerprint(("part", stage_key, name))
    known = store.lookup(key)
    blob = store.get(known) if known is not None else None
    if blob is not None:
        return cls.from_blob(blob)
    value = compute()
    written = value.to_blob()
    if written is not None:
        digest = written.digest()
        store.put(digest, written)
        store.remember(key, digest)
    return value
