"""A result that need not be in memory."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from quantry.memo._digest import Digest

ValueT = TypeVar("ValueT")


class Handle(Generic[ValueT]):
    """Stands for a stage's result: its digest at once, its value on demand.

    Made by `Memo.run`. The value is loaded, or computed again, when first asked for, and then stays as long as the
    handle. Safe to share between threads: the value is produced once.

    Attributes:
        stage_name: The stage whose result it is.
        digest: Of the result's content, or the key of the call for a stage whose results are not kept.
        kept: Whether the digest is that of the content.
    """

    def __init__(self, stage_name: str, digest: Digest, produce: Callable[[], ValueT], *, kept: bool = True) -> None:
        self.stage_name = stage_name
        self.digest = digest
        self.kept = kept
        self._lock = threading.Lock()
        # Replaced by the value: it holds on to the inputs, which nobody needs once the value is there.
        self._produce: Callable[[], ValueT] | None = produce
        self._value: ValueT

    @property
    def value(self) -> ValueT:
        """The result itself.

        Raises:
            StageError: The value had to be computed again and the stage failed.
            InternalError: It had to be computed again and came out different.
        """
        with self._lock:
            if self._produce is not None:
                self._value = self._produce()
                self._produce = None
            return self._value

    def __fingerprint__(self) -> Digest:
        return self.digest

    def __repr__(self) -> str:
        return f"Handle({self.stage_name}, {self.digest.short})"
