"""The machine: its name, which timings depend on, its memory, and its GPUs."""

import ctypes
import functools
import platform
import sys
import warnings
from collections.abc import Callable
from importlib import util
from pathlib import Path

from quantry.operating_system import core_count


@functools.cache  # It does not change, and reading the file takes milliseconds.
def machine_name() -> str:
    """Return processor and usable cores, such as ``"Intel(R) Xeon(R) Processor, 2 cores"``."""
    return f"{_processor()}, {core_count()} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def trim_memory() -> None:
    """Return freed memory to the operating system.

    The C library keeps freed blocks. After large arrays of many sizes they are too fragmented to be used again, and
    the process keeps growing.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache  # Called after every layer.
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Only the GNU C library has this function.
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


MISSING_DEVICE = "this machine has no device"
"""How the warning about a device that does not exist starts."""

# onnxruntime's execution providers for the kinds of GPUs that recipes name.
GPU_PROVIDERS = {"cuda": ("CUDAExecutionProvider",), "hip": ("ROCMExecutionProvider", "MIGraphXExecutionProvider")}


def existing_device(device: str, *, inference: bool = False) -> str:
    """Return a device if this machine has it, otherwise ``cpu``, with one warning per device and process.

    Recipes and search spaces are written on machines with GPUs and run on others; the CPU computes the same.

    Args:
        device: ``cpu``, ``cuda:N`` or ``hip:N``.
        inference: It only runs models, which onnxruntime may do without torch.
    """
    kind, _, number = device.partition(":")
    first = number.split(",")[0]
    if kind == "cpu" or int(first or 0) < _torch_gpus() or (inference and _has_provider(kind)):
        return device
    _warn_of_missing(device)
    return "cpu"


def best_device() -> str:
    """Return the device to train on if the user names none: the first GPU, else the CPU."""
    return "cuda:0" if _torch_gpus() else "cpu"


@functools.cache  # One warning per device, not one per layer or trial.
def _warn_of_missing(device: str) -> None:
    warnings.warn(f"{MISSING_DEVICE} {device!r} that torch can use; the CPU is used instead", stacklevel=3)


@functools.cache  # Importing torch and opening its GPUs takes seconds.
def _torch_gpus() -> int:
    if util.find_spec("torch") is None:
        return 0
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _has_provider(kind: str) -> bool:
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return any(name in available for name in GPU_PROVIDERS[kind])
