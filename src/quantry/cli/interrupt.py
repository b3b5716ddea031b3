"""Ctrl-C."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Exit with `INTERRUPTED` and without a word when the user interrupts; for the main thread only.

    Libraries in C may turn the interrupt into an exception of their own: importing onnxruntime raises ImportError then.
    So what counts is that the signal came, not what it has become on its way up.
    """
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    except BaseException:
        if came:
            sys.exit(INTERRUPTED)
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
