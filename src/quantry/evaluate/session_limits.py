"""Limits what onnxruntime takes of the machine in a process that shares it with others like it."""

import os
import sys
from typing import Any

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Give every session that this process opens from now on so many threads, none of which spins while it waits.

    Sessions whose options name a number of threads keep it. It holds for sessions of a user's evaluator too, and for
    torch. Meant for worker processes: on two cores, two workers with two threads each take longer than with one.

    Args:
        threads: Threads inside one operator.
    """
    import onnxruntime

    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    opened = onnxruntime.InferenceSession.__init__

    def open_limited(self: Any, path_or_bytes: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        if options.intra_op_num_threads == 0:
            options.intra_op_num_threads = threads
        _set_once(options, "session.intra_op.allow_spinning", "0")
        opened(self, path_or_bytes, options, *args, **kwargs)

    onnxruntime.InferenceSession.__init__ = open_limited
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _set_once(options: Any, key: str, value: str) -> None:
    """Set an entry that the caller did not set; onnxruntime warns of setting one twice, and has no way to ask first."""
    try:
        options.get_session_config_entry(key)
    except Exception:  # onnxruntime's exceptions share no base class below it
        options.add_session_config_entry(key, value)
