"""The compiled kernels: signatures and argument checks of every C function.

The sources are in ``c/``. ``build_kernels.py`` compiles them into one shared library when the wheel is built; nothing
is compiled at run time. The library contains every function once per instruction-set level, and `loaded` selects the
highest level that the processor supports. All levels give the same bytes.

Each caller has an implementation in NumPy or PyTorch that it uses when `loaded` returns None.
"""

import ctypes
import functools
import hashlib
import json
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError

SWITCH = "QUANTRY_NATIVE"
"""Environment variable: ``off`` uses NumPy and PyTorch only; ``v2``, ``v3`` or ``v4`` selects a level on x86-64."""

_LOG = logging.getLogger("quantry")
_DESCRIPTION = Path(__file__).with_name("_kernels.json")
_X86_LEVELS = ("v2", "v3", "v4")
"""Ascending: a processor that supports one supports those before it. ARM has a single level."""

_OFF = ("off", "0")
_SLOWER = "NumPy is used, which is slower"
_OLD_PROCESSOR = "the compiled kernels need an x86-64 processor with SSE4.2"
# A source tree may hold a library that was built before the newest kernel was written.
_OLD_BUILD = "the compiled kernels are older than the sources; run: python build_kernels.py"

Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]

_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p


class QuantizeTask(ctypes.Structure):
    """``task_t`` of ``quantize_values.c``."""

    _fields_ = (
        *((name, _POINTER) for name in ("values", "gradients", "results", "inside", "sums")),
        *((name, _SIZE) for name in ("count", "next")),
        *((name, ctypes.c_float) for name in ("scale", "low", "high")),
    )


class ErrorTask(ctypes.Structure):
    """``task_t`` of ``candidate_errors.c``."""

    _fields_ = (
        *((name, _POINTER) for name in ("values", "gradients", "scales", "low", "high", "sums")),
        *((name, _SIZE) for name in ("outer", "channels", "inner", "candidates", "next")),
    )


class _Broadcast(ctypes.Structure):
    """``broadcast_t`` of ``round_rows.c``."""

    _fields_ = (("values", _POINTER), *((name, ctypes.c_ssize_t) for name in ("group", "row", "column")))


class WeightGridTask(ctypes.Structure):
    """``grid_t`` of ``round_rows.c``: the values that weights can take."""

    _fields_ = (
        *((name, _SIZE) for name in ("rows", "width")),
        *((name, _Broadcast) for name in ("scale", "lowest", "highest")),
    )

    @classmethod
    def of(cls, shape: tuple[int, int, int], scale: Single, lowest: Single, highest: Single) -> "WeightGridTask":
        """Return the grid of weights ``[groups, rows, width]``; the three arrays broadcast to that shape."""
        views = [np.broadcast_to(np.asarray(array, np.float32), shape) for array in (scale, lowest, highest)]
        strides = ([step // 4 for step in view.strides] for view in views)
        broadcasts = [_Broadcast(view.ctypes.data, *steps) for view, steps in zip(views, strides, strict=True)]
        task = cls(shape[1], shape[2], *broadcasts)
        task.views = views  # C only has addresses, which do not keep the arrays alive.
        return task


class GroupLines(ctypes.Structure):
    """``lines_t`` of ``weight_groups.c``: lines of values that are cut into groups."""

    LANES = 32
    """How many groups are processed side by side."""

    _fields_ = (
        ("values", _POINTER),
        *((name, ctypes.c_ssize_t) for name in ("line", "value")),
        *((name, _SIZE) for name in ("count", "length", "size")),
        ("scratch", _POINTER),
    )

    @classmethod
    def of(cls, lines: Single, size: int) -> "GroupLines":
        """Return the lines ``[count, length]`` of a view of any memory order, in groups of a size."""
        if lines.dtype != np.float32:
            raise InternalError(f"a kernel's lines must be float32, got {lines.dtype}; in numerics")
        scratch = np.empty((size, cls.LANES), np.float32)
        steps = (step // lines.itemsize for step in lines.strides)
        task = cls(lines.ctypes.data, *steps, *lines.shape, size, scratch.ctypes.data)
        task.arrays = lines, scratch  # C only has addresses, which do not keep the arrays alive.
        return task

    @property
    def groups(self) -> int:
        """Number of groups in a line."""
        return -(-int(self.length) // int(self.size))

    @property
    def padded(self) -> tuple[int, int]:
        """Shape of the arrays with one entry for each group: groups, and lines in whole blocks."""
        return self.groups, -(-int(self.count) // self.LANES) * self.LANES


class GroupSearchTask(ctypes.Structure):
    """``search_t`` of ``weight_groups.c``."""

    _fields_ = (
        ("lines", GroupLines),
        ("parts", _POINTER),
        *((name, ctypes.c_double) for name in ("lowest", "highest", "centre", "steps", "largest_end")),
        *((name, ctypes.c_int32) for name in ("symmetric", "either_sign")),
        *((name, _POINTER) for name in ("scale", "zero", "empty")),
    )


class GroupPackTask(ctypes.Structure):
    """``pack_t`` of ``weight_groups.c``."""

    _fields_ = (
        ("lines", GroupLines),
        *((name, _POINTER) for name in ("scale", "zero")),
        *((name, ctypes.c_float) for name in ("lowest", "highest", "shift")),
        ("bits", ctypes.c_int32),
        *((name, _POINTER) for name in ("integers", "packed")),
    )


class RowLayerTask(ctypes.Structure):
    """``layer_t`` of ``train_rows.c``: a layer whose rows are trained."""

    _SIZES = ("rows", "width", "padded", "rank", "rank_padded")
    _ARRAYS = (
        "gram", "factor", "cross", "scale", "lowest", "highest", "mean", "value", "first", "second", "floor", "target",
        "bias_scale", "bias_lowest", "bias_highest", "bias", "bias_first", "bias_second",
    )  # fmt: skip
    _DOUBLES = ("bias_scale", "bias_lowest", "bias_highest")
    _fields_ = (
        *((name, _SIZE) for name in _SIZES),
        *((name, _POINTER) for name in _ARRAYS),
        *((name, ctypes.c_int32) for name in ("bias_moves", "rounds")),
    )

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]], **numbers: int) -> "RowLayerTask":
        """Return the layer.

        Args:
            arrays: The fields that are pointers, float32 and contiguous, or float64 for the bias grid.
            numbers: The other fields.
        """
        types = {name: np.float64 if name in cls._DOUBLES else np.float32 for name in cls._ARRAYS}
        task = cls(**numbers, **{name: _address(array, types[name]) for name, array in arrays.items()})
        task.arrays = dict(arrays)  # C only has addresses, which do not keep the arrays alive.
        return task


_TASK = (_POINTER,)
_ROUNDING = (ctypes.POINTER(WeightGridTask), _POINTER, _POINTER, _POINTER, _SIZE, _SIZE)
_LAYER = ctypes.POINTER(RowLayerTask)
_SIGNATURES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "count_codes": ((_POINTER, _SIZE, _POINTER, _POINTER), None),
    "quantize": (_TASK, None),
    "pass_inside": (_TASK, None),
    "learn": (_TASK, None),
    "add_errors": (_TASK, None),
    "round_with_feedback": (_ROUNDING, None),
    "descend": (_ROUNDING, ctypes.c_int),
    "pack_columns": ((_POINTER, _SIZE, _SIZE, _SIZE, _POINTER), None),
    "search_groups": ((ctypes.POINTER(GroupSearchTask),), None),
    "pack_groups": ((ctypes.POINTER(GroupPackTask),), None),
    "train_rows_scratch": ((_LAYER,), _SIZE),
    "train_rows": ((_LAYER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER), None),
}


class Kernels:
    """The functions of one instruction-set level. Calls release the GIL, so Python threads run them in parallel.

    Args:
        library: The loaded library.
        level: Suffix of the level's functions.

    Attributes:
        level: The same.
        build_id: Digest of the sources and flags that the library was built from.
        quantize: Takes a `QuantizeTask`, also from several threads at once; so do `pass_inside` and `learn`.
        add_errors: Takes an `ErrorTask`, also from several threads at once.
    """

    def __init__(self, library: ctypes.CDLL, level: str) -> None:
        self.level, self.build_id = level, _text(library, "quantry_build_id")
        functions: dict[str, Any] = {}
        for name, (arguments, result) in _SIGNATURES.items():
            functions[name] = getattr(library, f"quantry_{name}_{level}")
            functions[name].argtypes, functions[name].restype = arguments, result
        self._functions = functions
        self.quantize, self.pass_inside = functions["quantize"], functions["pass_inside"]
        self.learn, self.add_errors = functions["learn"], functions["add_errors"]

    def count_codes(self, values: Single, histogram: npt.NDArray[np.uint32]) -> tuple[int, int]:
        """Add the codes of values, the upper halves of their bits, to a histogram.

        Args:
            values: Contiguous.
            histogram: ``[65536]``.

        Returns:
            Smallest and largest rank: a float's bits as an integer that ascends with its value.
        """
        ranks = np.empty(2, np.int32)
        counts = _address(histogram, np.uint32)
        self._functions["count_codes"](_address(values, np.float32), values.size, counts, ranks.ctypes.data)
        return int(ranks[0]), int(ranks[1])

    def round_with_feedback(
        self, grid: WeightGridTask, spread: Single, remainder: Single, result: Single, rows: range
    ) -> None:
        """Round some rows column by column; later columns compensate the error of each.

        Args:
            grid: The values to round to.
            spread: How much of it, ``[groups, width, width]``.
            remainder: The weights, ``[groups, rows, width]``; overwritten.
            result: The weights; becomes the rounded weights.
            rows: Which rows, counted over all groups.
        """
        arrays = (_address(array, np.float32) for array in (spread, remainder, result))
        self._functions["round_with_feedback"](ctypes.byref(grid), *arrays, rows.start, rows.stop)

    def descend(self, grid: WeightGridTask, gram: Single, slope: Single, current: Single, rows: range) -> bool:
        """Let each weight of some rows in turn take the best value given the others; return whether any changed.

        Args:
            grid: The values to choose from.
            gram: ``[groups, width, width]``.
            slope: Half the derivative of the error, ``[groups, rows, width]``; overwritten.
            current: The weights, on the grid; changed in place.
            rows: Which rows, counted over all groups.
        """
        arrays = (_address(array, np.float32) for array in (gram, slope, current))
        return bool(self._functions["descend"](ctypes.byref(grid), *arrays, rows.start, rows.stop))

    def pack_columns(self, matrix: Single, padded: int) -> Single:
        """Return a matrix ``[lines, columns]`` in the memory order of `train_rows`, with `padded` columns."""
        matrix = np.ascontiguousarray(matrix, np.float32)
        packed = np.empty(len(matrix) * padded, np.float32)
        self._functions["pack_columns"](matrix.ctypes.data, *matrix.shape, padded, packed.ctypes.data)
        return packed

    def search_groups(
        self, lines: GroupLines, shares: Sequence[float], **options: float
    ) -> tuple[Single, Single, npt.NDArray[np.bool_]]:
        """Return scale, zero point and whether all values are zero, ``[count, groups]``.

        Args:
            lines: The values.
            shares: Three parts of a group's whole range, whose scales are compared.
            options: The other numbers of `GroupSearchTask`.
        """
        ranges = np.asarray(shares, np.float64)
        scale, zero = np.empty(lines.padded, np.float32), np.empty(lines.padded, np.float32)
        empty = np.empty(lines.padded, np.bool_)
        arrays: dict[str, npt.NDArray[Any]] = {"parts": ranges, "scale": scale, "zero": zero, "empty": empty}
        task = GroupSearchTask(lines, **options, **{name: array.ctypes.data for name, array in arrays.items()})
        self._functions["search_groups"](ctypes.byref(task))
        return scale[:, : lines.count].T, zero[:, : lines.count].T, empty[:, : lines.count].T

    def pack_groups(
        self, lines: GroupLines, scale: Single, zero: Single, packed: npt.NDArray[np.uint8], **options: float
    ) -> None:
        """Quantize groups and pack the integers.

        Args:
            lines: The values.
            scale: ``[count, groups]``.
            zero: Zero points of the same shape.
            packed: ``[count, groups, bytes of a group]``; the end of a group that is shorter stays as it is.
            options: The numbers of `GroupPackTask`.
        """
        scales, zeros = np.ones(lines.padded, np.float32), np.zeros(lines.padded, np.float32)
        scales[:, : lines.count], zeros[:, : lines.count] = scale.T, zero.T
        integers = np.empty((lines.size, lines.LANES), np.uint8)
        arrays: dict[str, npt.NDArray[Any]] = {"scale": scales, "zero": zeros, "integers": integers}
        addresses = {name: array.ctypes.data for name, array in arrays.items()}
        task = GroupPackTask(lines, **options, **addresses, packed=_address(packed, np.uint8))
        self._functions["pack_groups"](ctypes.byref(task))

    def train_rows(self, layer: RowLayerTask, schedule: Single, losses: Double, rows: range) -> None:
        """Train some rows of a layer.

        Args:
            layer: The layer, whose arrays are changed in place.
            schedule: One row per step; see ``step_t`` of ``train_rows.c``.
            losses: Receives the loss of each row before each step, ``[groups * rows, steps]``.
            rows: Which rows, counted over all groups.
        """
        scratch = np.empty(self._functions["train_rows_scratch"](ctypes.byref(layer)), np.float32)
        steps, memory, written = _address(schedule, np.float32), scratch.ctypes.data, _address(losses, np.float64)
        self._functions["train_rows"](ctypes.byref(layer), steps, len(schedule), rows.start, rows.stop, memory, written)


@functools.cache  # Every call of a kernel asks; binding its functions takes longer than a small call.
def loaded(level: str | None = None) -> Kernels | None:
    """Return the compiled kernels, or None if no library can be used; the log then says so once.

    The environment variable is read once per process.

    Args:
        level: None selects the level named in the environment variable, else the highest that the processor supports.

    Raises:
        InternalError: The processor does not support the given level.
    """
    setting = os.environ.get(SWITCH, "").lower()
    library = None if setting in _OFF else _library()
    if library is None:
        return None
    levels = _supported(library)
    if not levels:
        _LOG.warning("%s; %s", _OLD_PROCESSOR, _SLOWER)
        return None
    if setting and setting not in levels:
        _LOG.warning("%s must be off or one of %s, got %r; %s is used", SWITCH, levels, setting, levels[-1])
        setting = ""
    level = level or setting or levels[-1]
    if level not in levels:
        raise InternalError(f"the level of the kernels must be one of {levels}, got {level!r}; in numerics")
    try:
        return Kernels(library, level)
    except AttributeError:
        _LOG.warning("%s; %s", _OLD_BUILD, _SLOWER)
        return None


def why_missing() -> str:
    """Return why NumPy is used instead of compiled kernels; empty if they are used."""
    if loaded() is not None:
        return ""
    if os.environ.get(SWITCH, "").lower() in _OFF:
        return f"they are switched off by {SWITCH}"
    library = _opened(_DESCRIPTION)
    if isinstance(library, str):
        return library
    return _OLD_BUILD if _supported(library) else _OLD_PROCESSOR


def supported_levels() -> tuple[str, ...]:
    """Return the instruction-set levels that this processor supports, the highest last; none without a library."""
    library = _library()
    return () if library is None else _supported(library)


def library_file() -> Path | None:
    """Return the library, which also has an operator for onnxruntime; None if there is none that can be used."""
    # A source tree may hold a library that was built before the operator was written.
    if loaded() is None or not hasattr(_library(), "RegisterCustomOps"):
        return None
    return _DESCRIPTION.with_name(json.loads(_DESCRIPTION.read_text("utf-8"))["file"])


def build_id() -> str:
    """Return what identifies the arithmetic of this installation: the library's build id, or ``numpy`` without one.

    Results of two installations with the same build id have the same bytes, on any processor and operating system.
    """
    kernels = loaded()
    return "numpy" if kernels is None else kernels.build_id


@functools.cache  # The library is read, checked and loaded once per process.
def _library() -> ctypes.CDLL | None:
    return load_library(_DESCRIPTION)


def load_library(description: Path) -> ctypes.CDLL | None:
    """Load the shared library next to a description file; return None if there is none that can be used.

    Only the file named in the description is loaded, from the description's own folder, and only if its size and digest
    are those recorded when it was built. Without that check a truncated file would kill the process with a bus error
    when the system maps it, and a library of another build could be loaded by accident.

    Never raises. Logs one warning if the library is missing or damaged.

    Args:
        description: JSON file that the build writes: ``file`` (name), ``size`` (bytes) and ``sha256`` of the library.
    """
    library = _opened(description)
    if isinstance(library, str):
        _LOG.warning("%s; %s", library, _SLOWER)
        return None
    return library


def _opened(description: Path) -> ctypes.CDLL | str:
    """Return the library next to a description file, or why it cannot be used."""
    try:
        text = description.read_text(encoding="utf-8")
    except OSError:
        return f"quantry was installed without compiled kernels for {sys.platform} on {platform.machine()}"
    try:
        built = json.loads(text)
        # The description names a file, not a path: nothing outside its folder is ever loaded.
        path = description.with_name(Path(built["file"]).name)
        content = path.read_bytes()
        if len(content) != built["size"] or hashlib.sha256(content).hexdigest() != built["sha256"]:
            raise OSError(f"{path.name} must have the size and digest recorded at build time")
        return ctypes.CDLL(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the compiled kernels cannot be loaded; reinstall quantry: {error}"


def _supported(library: ctypes.CDLL) -> tuple[str, ...]:
    highest = _text(library, "quantry_level")
    if highest in _X86_LEVELS:
        return _X86_LEVELS[: _X86_LEVELS.index(highest) + 1]
    return (highest,) if highest else ()


def _text(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.argtypes, function.restype = [], ctypes.c_char_p
    return str(function().decode())


def _address(array: npt.NDArray[Any], dtype: type[np.generic]) -> int:
    """Return the address of an array after checking what C relies on."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise InternalError(
            f"a kernel's array must be contiguous {np.dtype(dtype)}, got {array.dtype} with strides {array.strides}; "
            "in numerics"
        )
    return int(array.ctypes.data)
