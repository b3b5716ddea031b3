"""Convert a raw sample into arrays that fit the model's inputs, or raise an error that says what does not fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.errors import DataError, nearest_spelling
from quantry.graph.float_model import InputSignature

Array = npt.NDArray[Any]
Sample = dict[str, Array]
"""One array per input of the model, by name."""

Signatures = tuple[InputSignature, ...]


def conform(raw: object, inputs: Signatures, index: int) -> Sample:
    """Return one sample in the form that the model needs.

    A sample may be a mapping from input names to arrays, a tuple or list in the order of the inputs (further items,
    such as labels, are ignored), or an array for a model with one input. Arrays may be anything NumPy can read, and
    PyTorch tensors. Two things are converted if necessary: number types within their kind if no value is lost (float64
    is rounded to float32), and a missing batch axis is added if the model's batch size is 1 or dynamic.

    Args:
        raw: What the source yielded.
        inputs: The inputs of the model.
        index: Position of the sample, for messages.

    Raises:
        DataError: A name, number type or shape does not fit, or a value is NaN or infinite.
    """
    by_name = _by_name(raw, inputs, f"sample {index}")
    return {
        signature.name: _conform_array(by_name[signature.name], signature, f"sample {index}, input {signature.name!r}")
        for signature in inputs
    }


def batch_axis_is_free(signature: InputSignature) -> bool:
    """Return whether the model's batch size is 1 or dynamic, so that a single sample can be fed."""
    return len(signature.shape) > 0 and (signature.shape[0] == 1 or not isinstance(signature.shape[0], int))


def describe(signature: InputSignature) -> str:
    """Return type and shape as text, for messages: ``float32[1, 3, ?, width]``."""
    dims = ", ".join("?" if dim is None else str(dim) for dim in signature.shape)
    return f"{signature.dtype}[{dims}]"


def to_numpy(value: object, label: str) -> Array:
    """Return any array-like as a NumPy array; a PyTorch tensor is detached and copied to the CPU.

    Raises:
        DataError: It is not an array of numbers.
    """
    if all(hasattr(value, name) for name in ("detach", "cpu", "numpy")):
        value = _from_torch(value, label)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"an input must be an array of numbers, got a ragged {type(value).__name__}; {label}"
        ) from error
    if array.dtype.hasobject or (array.dtype.kind not in "biuf" and not _is_extension_float(array.dtype)):
        raise DataError(
            f"an input must be an array of numbers, got {type(value).__name__} of dtype {array.dtype}; {label}"
        )
    return array


def _from_torch(tensor: Any, label: str) -> object:
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise DataError(f"an input must be a dense tensor, got one of layout {layout}; use to_dense(); {label}")
    if str(getattr(tensor, "dtype", None)) == "torch.bfloat16":
        tensor = tensor.float()  # NumPy has no bfloat16; float32 represents all of its values
    return tensor.detach().cpu().numpy()


def _is_extension_float(dtype: np.dtype[Any]) -> bool:
    """Return whether this is a number type that NumPy itself does not have, such as bfloat16 of ml_dtypes."""
    return dtype.kind == "V" and dtype.fields is None and np.can_cast(dtype, np.float32)


def _by_name(raw: object, inputs: Signatures, label: str) -> Mapping[str, object]:
    names = [signature.name for signature in inputs]
    if isinstance(raw, Mapping):
        return _checked_names(raw, names, label)
    if isinstance(raw, tuple | list):
        return _by_position(raw, names, label)
    if len(names) != 1:
        raise DataError(
            f"a sample for a model with inputs {names} must be a mapping from names to arrays, or a tuple in that "
            f"order, got one {type(raw).__name__}; {label}"
        )
    return {names[0]: raw}


def _checked_names(raw: Mapping[Any, object], names: list[str], label: str) -> Mapping[str, object]:
    unknown = [name for name in raw if name not in names]
    if unknown:
        hint = nearest_spelling(str(unknown[0]), names)
        raise DataError(
            f"samples must match the model's inputs {names}, got an array for {unknown[0]!r}{hint}; {label}"
        )
    missing = [name for name in names if name not in raw]
    if missing:
        raise DataError(f"samples must match the model's inputs {names}, got no array for {missing[0]!r}; {label}")
    return raw


def _by_position(raw: Sequence[object], names: list[str], label: str) -> Mapping[str, object]:
    if len(raw) < len(names):
        raise DataError(
            f"samples must match the model's inputs {names}, got {len(raw)} arrays in a {type(raw).__name__}; {label}"
        )
    return dict(zip(names, raw, strict=False))


def _conform_array(value: object, signature: InputSignature, label: str) -> Array:
    array = _cast(to_numpy(value, label), signature, label)
    array = _shaped(array, signature, label)
    # Minimum and maximum are NaN if any value is, so they show all non-finite values without an array of flags.
    if array.dtype.kind == "f" and array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        position = tuple(int(axis[0]) for axis in np.nonzero(~np.isfinite(array)))
        number = "NaN" if np.isnan(array[position]) else "an infinity"
        raise DataError(f"data must be finite numbers, got {number} at {position}; {label}")
    return np.asarray(array, order="C")


def _cast(array: Array, signature: InputSignature, label: str) -> Array:
    dtype = signature.dtype
    if array.dtype == dtype:
        return array
    if _is_float(array.dtype) and _is_float(dtype):
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        if np.can_cast(array.dtype, dtype) or (dtype == np.float32 and not _overflowed(array, cast)):
            return cast
    if array.dtype.kind in "iu" and dtype.kind in "iu" and _fits(array, dtype):
        return array.astype(dtype)
    advice = "convert it as for training"
    raise DataError(f"the model needs {describe(signature)}, got {array.dtype}{list(array.shape)}: {advice}; {label}")


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or _is_extension_float(dtype)


def _overflowed(before: Array, after: Array) -> bool:
    return bool(np.isinf(after).sum() > np.isinf(before).sum())


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return array.size == 0 or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def _shaped(array: Array, signature: InputSignature, label: str) -> Array:
    if array.ndim == len(signature.shape) - 1 and batch_axis_is_free(signature):
        array = array[np.newaxis]
    fits = array.ndim == len(signature.shape) and all(
        not isinstance(expected, int) or expected == length
        for expected, length in zip(signature.shape, array.shape, strict=True)
    )
    if not fits:
        raise DataError(f"the model needs {describe(signature)}, got {array.dtype}{list(array.shape)}; {label}")
    if array.size == 0 and not _may_be_empty(array.shape, signature):
        raise DataError(f"a sample must contain at least one value, got {array.dtype}{list(array.shape)}; {label}")
    return array


def _may_be_empty(shape: tuple[int, ...], signature: InputSignature) -> bool:
    """Return whether only inner axes of free length are empty, such as a language model's cache before any token."""
    empty = [axis for axis, length in enumerate(shape) if length == 0]
    return 0 not in empty and len(shape) > 2 and all(not isinstance(signature.shape[axis], int) for axis in empty)
