"""What changes the bytes of a stage's result besides its arguments: library versions, compiled kernels, devices.

Every stage that runs a library, a compiled kernel or a device has these in its key (see `quantry.memo.stage`), so that
machines that compute different bytes can share a store.
"""

import functools
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

# Vector extensions, widest first, by the flags of /proc/cpuinfo. Libraries choose their float kernels by them, and the
# width of a vector decides in which order a sum is computed: OpenBLAS and onnxruntime return other last bits with each.
_VECTOR_EXTENSIONS = ("avx512f", "avx2", "avx", "sve", "asimd")


def environment(
    *, libraries: Iterable[str] = (), kernels: bool = False, devices: Iterable[str] = ("cpu",)
) -> dict[str, str]:
    """Return the part of a stage's key that describes this machine and its installation, as texts by name.

    Args:
        libraries: Packages whose version changes results; a missing one is part of the key too.
        kernels: Whether the stage uses compiled kernels. The build id differs between versions of the kernels, and
            without kernels NumPy computes instead, which rounds differently.
        devices: Where the stage runs: ``cpu``, ``cuda:N``, ``hip:N``, or names of onnxruntime execution providers.
    """
    versions = {library: _version(library) for library in libraries}
    if kernels:
        # Imported here because most callers need no kernels.
        from quantry.numerics.kernels import build_id

        versions["kernels"] = build_id()
    return {**versions, "devices": ", ".join(dict.fromkeys(map(device_kind, devices)))}


def depends_on(*libraries: str) -> Callable[[Mapping[str, Any]], Mapping[str, str]]:
    """Return the environment of a stage that computes with libraries on the processor.

    Args:
        *libraries: Packages whose version changes results.

    Example:
        ::

            @stage(name="scale", version=1, environment=depends_on("numpy"))
            def scale(...) -> QuantParams: ...
    """
    return lambda _arguments: environment(libraries=libraries)


def device_kind(device: str) -> str:
    """Return the kind of a device: results are the same on devices of one kind.

    Args:
        device: ``cpu``, ``cuda:N``, ``hip:N``, or the name of an onnxruntime execution provider.

    Returns:
        Architecture and vector extension of the processor, or the model of the GPU.
    """
    if device in ("cpu", "CPUExecutionProvider"):
        return processor_kind()
    name, _, number = device.partition(":")
    first = number.split(",")[0]
    return f"{name} {_gpu_model(int(first) if first.isdecimal() else 0)}"


@functools.cache  # The file has some hundred lines per core; reading it takes milliseconds.
def processor_kind() -> str:
    """Return architecture and widest vector extension of the processor, such as ``"x86_64 avx2"``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        # Windows and macOS: the model of the processor, which decides its extensions.
        return f"{platform.machine()} {platform.processor()}".strip()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    flags = set(line.partition(":")[2].split())
    extension = next((name for name in _VECTOR_EXTENSIONS if name in flags), "")
    return f"{platform.machine()} {extension}".strip()


@functools.cache  # Reading the metadata of a package takes 1 ms, and every key needs it.
def _version(library: str) -> str:
    if library == "onnxruntime":
        # It is distributed under several names, so its own attribute is the only reliable source.
        return str(import_module(library).__version__) if util.find_spec(library) is not None else "none"
    # Without importing the library: importing torch takes seconds, which a known result must not cost.
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


@functools.cache  # Opening the GPU takes seconds.
def _gpu_model(number: int) -> str:
    if util.find_spec("torch") is None:
        return "GPU"
    import torch

    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        return "GPU"
    return str(torch.cuda.get_device_name(number))
