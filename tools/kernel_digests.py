"""Prints digests of what every compiled kernel computes, and of a quantized model, as one line of JSON.

All processors and systems must print the same digests: `tools/emulated.py` runs this on several and compares. Inputs
are small integers over powers of two, so that no library of the platform rounds them. What also has a reference in
NumPy is compared with it here. Needs NumPy and an installed quantry; the model also needs onnxruntime.
"""

import argparse
import ctypes
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from quantry.numerics import kernels

LEVEL = kernels.loaded()
if LEVEL is None:
    sys.exit("the compiled kernels must be loaded; the log says why they are not")

Single = np.ndarray


def main() -> None:
    """Compute all and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="store_true", help="also quantize the embedded model; slow when emulated")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], bytes]] = {
        "count_codes": count_codes,
        "quantize, pass_inside, learn": quantize_values,
        "add_errors": candidate_errors,
        "round_with_feedback, descend": round_rows,
        "search_groups, pack_groups": weight_groups,
        "look_up": look_up,
        "pack_columns, train_rows": train_rows,
    }
    if arguments.model:
        parts["model with XINT8"] = quantized_model
    digests, not_tried = {}, {}
    for name, compute in parts.items():
        try:
            digests[name] = hashlib.sha256(compute()).hexdigest()[:16]
        except ImportError as error:
            not_tried[name] = f"{type(error).__name__}: {error}"
    line = {
        "system": f"{sys.platform} {platform.machine()}",
        "python": platform.python_version(),
        "level": LEVEL.level,
        "build_id": LEVEL.build_id,
        "digests": digests,
        "not tried": not_tried,
    }
    print(json.dumps(line), flush=True)


def exact(shape: tuple[int, ...], seed: int, step: float = 2.0**-6) -> Single:
    """Return float32 values that are multiples of a power of two, the same everywhere."""
    return (np.random.default_rng(seed).integers(-256, 256, shape) * step).astype(np.float32)


def joined(*arrays: Single) -> bytes:
    """Return the bytes of arrays, one after the other."""
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


def count_codes() -> bytes:
    """Count the codes of arbitrary bits, NaN and infinities among them."""
    bits = np.random.default_rng(1).integers(0, 2**32, 100_003, np.uint32)
    histogram = np.zeros(65536, np.uint32)
    ranks = LEVEL.count_codes(bits.view(np.float32), histogram)
    np.testing.assert_array_equal(histogram, np.bincount(bits >> 16, minlength=65536))
    return joined(histogram, np.array(ranks))


def quantize_values() -> bytes:
    """Quantize with a power of two and another scale, with both gradients."""
    written = []
    for scale in (2.0**-5, 0.0237):
        values, gradients = exact((40_005,), 2), exact((40_005,), 3)
        values[:3] = np.nan, np.inf, -np.inf
        arrays = {
            "values": values,
            "gradients": gradients,
            "results": np.empty_like(values),
            "inside": np.empty(values.size, np.uint8),
            "sums": np.zeros(2),
        }
        for kernel in (LEVEL.quantize, LEVEL.pass_inside, LEVEL.learn):
            addresses = {name: array.ctypes.data for name, array in arrays.items()}
            task = kernels.QuantizeTask(count=values.size, scale=scale, low=-128, high=127, **addresses)
            kernel(ctypes.byref(task))
            if kernel is LEVEL.quantize:
                steps = np.clip(np.rint(values[3:] / np.float32(scale)), -128, 127)
                np.testing.assert_array_equal(arrays["results"][3:], steps * np.float32(scale))
            written.append(joined(arrays["results"], arrays["inside"], arrays["sums"]))
    return b"".join(written)


def candidate_errors() -> bytes:
    """Measure the rounding errors of two scales."""
    values, gradients = exact((2, 3, 5000), 4), exact((2, 3, 5000), 5)
    scales = np.array([[2.0**-5] * 3, [0.03, 0.02, 0.01]], np.float32)
    low, high, sums = np.full(3, -128, np.float32), np.full(3, 127, np.float32), np.zeros((2, 3))
    arrays = (values, gradients, scales, low, high, sums)
    task = kernels.ErrorTask(*(array.ctypes.data for array in arrays), 2, 3, 5000, 2, 0)
    LEVEL.add_errors(ctypes.byref(task))
    return joined(sums)


def round_rows() -> bytes:
    """Round rows with error feedback and improve them by coordinate descent."""
    shape = (2, 9, 45)
    weight, spread = exact(shape, 6), np.triu(exact((2, 45, 45), 7, 2.0**-10), 1)
    scale = np.array([0.3, 0.25, 2.0**-2] * 3, np.float32).reshape(1, 9, 1)
    grid = kernels.WeightGridTask.of(shape, scale, np.float32(-4), np.float32(3))
    rounded, rest = weight.copy(), weight.copy()
    LEVEL.round_with_feedback(grid, np.ascontiguousarray(spread), rest, rounded, range(18))
    np.testing.assert_array_equal(rounded, np.rint(rounded / scale) * scale)
    gram = np.ascontiguousarray(np.eye(45, dtype=np.float32) + spread + spread.transpose(0, 2, 1))
    slope, changed = exact(shape, 8, 2.0**-12), []
    changed.append(LEVEL.descend(grid, gram, slope, rounded, range(18)))
    return joined(rounded, rest, slope, np.array(changed))


def weight_groups() -> bytes:
    """Find scales of groups of 16 values and pack them to 4 bits."""
    lines, written = exact((33, 40), 9), []
    lines[0] = 0
    grid = {"lowest": 0, "highest": 15, "centre": 8, "steps": 15, "largest_end": 1e38, "either_sign": False}
    for symmetric in (False, True):
        task = kernels.GroupLines.of(lines, 16)
        scale, zero, empty = LEVEL.search_groups(task, (1.0, 0.87, 0.75), symmetric=symmetric, **grid)
        packed = np.zeros((33, task.groups, 8), np.uint8)
        LEVEL.pack_groups(task, scale, zero, packed, lowest=0, highest=15, shift=0, bits=4)
        written.append(joined(scale, zero, empty, packed))
    return b"".join(written)


def look_up() -> bytes:
    """Evaluate a Q/DQ pair, and a table behind one."""
    library = kernels._library()  # onnxruntime calls this function, so that it has no binding
    function = getattr(library, f"quantry_look_up_{LEVEL.level}")
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = None
    values, written = exact((1500,), 10), []
    for scale in (2.0**-4, 0.0237):
        pair = np.array([scale, -128, 127], np.float32)
        expected = (np.clip(np.rint(values / pair[0]), -128, 127) + 0) * pair[0]
        table = np.concatenate([pair, exact((256,), 11)])
        for parameters in (pair, table):
            results = np.empty_like(values)
            function(values.ctypes.data, results.ctypes.data, values.size, parameters.ctypes.data, parameters.size)
            if parameters is pair:
                np.testing.assert_array_equal(results, expected)
            written.append(joined(results))
    return b"".join(written)


def train_rows() -> bytes:
    """Train rows as AdaRound and as AdaQuant do."""
    from quantry.tune.row_backends import CompiledRows
    from quantry.tune.row_problem import BiasGrid, RowProblem

    shape, written = (1, 10, 70), []
    # Integers are multiplied: the sums of a BLAS library depend on the processor.
    weight, seen = exact(shape, 12), exact((1, 200, 70), 13, 1.0).astype(np.int64)
    scale, bounds = np.full((1, 10, 1), 0.25, np.float32), np.full((1, 10, 1), 8, np.float32)
    for rounds in (True, False):
        floor = np.floor(weight / scale)
        problem = RowProblem(
            gram=(seen.transpose(0, 2, 1) @ seen).astype(np.float32) * np.float32(2.0**-19),
            cross=exact(shape, 14),
            mean=np.zeros((1, 70), np.float32),
            target=exact((1, 10), 15),
            scale=scale,
            lowest=-bounds,
            highest=bounds - 1,
            value=exact(shape, 16) if rounds else weight,
            floor=floor if rounds else None,
            bias=exact((1, 10), 17),
            bias_grid=BiasGrid(*(np.full((1, 10), value) for value in (0.05, -128.0, 127.0))),
            bias_moves=not rounds,
        )
        rows = CompiledRows(problem, LEVEL)
        # Learning rate, factor of the second moment, exponent and weight of the regularization of each step.
        schedule = np.array([(0.01, 1.5, 4.0, 0.25 if rounds and step > 8 else 0.0) for step in range(30)], np.float32)
        losses = rows.advance(schedule)
        assert losses[-1] < losses[0]
        written.append(joined(losses, *rows.trained(), *rows.written()))
    return b"".join(written)


def quantized_model() -> bytes:
    """Quantize the embedded detector with four samples."""
    import onnxruntime  # noqa: F401 - where it does not run, this part is not tried

    import quantry
    from quantry.demo import INPUT_NAME, MODEL_PATH

    samples = [{INPUT_NAME: np.abs(exact((1, 3, 128, 128), seed, 1.0))} for seed in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["QUANTRY_CACHE"] = folder
        path = Path(folder) / "detector.int8.onnx"
        quantry.quantize(str(MODEL_PATH), data=samples, recipe="XINT8").save(str(path))
        return path.read_bytes()


if __name__ == "__main__":
    main()
