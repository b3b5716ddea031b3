"""Cases of operators that pick, place and order values, sample images, and remember states."""

import itertools
from collections.abc import Iterator

import numpy as np
from operator_case import IMAGE, LINE, POSITIVE, ROW, VOLUME, Case, floats, ints

SMALL = np.clip(IMAGE, -0.9, 0.9)
TIES = np.array([[1, 3, 3, 2], [2, 0, 2, 0]], np.float32)


def functions() -> Iterator[Case]:
    yield Case("Selu", (IMAGE,), {"alpha": 1.5, "gamma": 0.8})
    yield Case("Celu", (IMAGE,), {"alpha": 0.4})
    yield Case("ThresholdedRelu", (IMAGE,), {"alpha": 0.4})
    yield Case("Shrink", (IMAGE,), {"bias": 0.2, "lambd": 0.4})
    yield from (Case(name, (SMALL,)) for name in ("Tan", "Asin", "Acos", "Sinh", "Cosh", "Atanh"))
    yield Case("Acosh", (POSITIVE + 1,))
    yield from (Case("CastLike", (2 * IMAGE, like)) for like in (ints(1), np.array([True]), ROW))
    limits = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    yield Case("IsNaN", (limits,))
    yield from (Case("IsInf", (limits,), {f"detect_{side}": 0}) for side in ("negative", "positive"))
    yield Case("IsInf", (limits,))
    yield Case("Xor", (IMAGE > 0, ROW > 0))
    yield from (Case(f"Bitwise{name}", (ints(5, 9), ints(3, 12))) for name in ("And", "Or", "Xor"))
    yield Case("BitwiseNot", (ints(5, -9),))
    yield from (
        Case("BitShift", (np.array([5, 200], np.uint8), np.array([1, 3], np.uint8)), {"direction": side})
        for side in ("LEFT", "RIGHT")
    )


def picking() -> Iterator[Case]:
    for axis in (0, 1, -1):
        yield Case("GatherElements", (floats(3, 4, 3), np.array([[[0, -1, 2], [1, 0, -2]]])), {"axis": axis})
    yield Case("GatherND", (floats(3, 4, 5), np.array([[0, 1], [-1, 2]])))
    yield Case("GatherND", (floats(3, 4, 5), np.array([[[0], [-1]]])))
    yield Case("GatherND", (floats(2, 4, 5), np.array([[[1, -1]], [[0, 3]]])), {"batch_dims": 1})
    yield Case("GatherND", (floats(2, 3, 4), np.array([[[1], [0], [2]], [[3], [0], [-1]]])), {"batch_dims": 2})
    index = np.array([[0, -1, 2, 1], [1, 0, -2, 0]])
    for axis, kind in itertools.product((0, 1, -2), ("none", "add", "mul", "min", "max")):
        places = np.array([[0, -1, 2, 1], [1, 0, -2, 0]]) if kind != "none" else np.array([[0, -1, 2, 1]])
        reduction = {} if kind == "none" else {"reduction": kind}
        yield Case("ScatterElements", (floats(3, 4), places, floats(*places.shape)), {"axis": axis, **reduction})
    yield Case("ScatterElements", (floats(4, 4), index[:1], floats(1, 4)), {"reduction": "none"})
    for kind in ("none", "add", "mul", "min", "max"):
        places = np.array([[0], [2]]) if kind == "none" else np.array([[0], [2], [-1]])
        given = (floats(3, 4), places, floats(len(places), 4))
        yield Case("ScatterND", given, {"reduction": kind})
    yield Case("ScatterND", (floats(3, 4), np.array([[0, 1], [-1, 2]]), floats(2)))
    for axis, k, largest in itertools.product((0, 1, -1), (1, 3), (0, 1)):
        yield Case("TopK", (floats(4, 4), ints(k)), {"axis": axis, "largest": largest, "sorted": 1}, outputs=2)
    yield Case("TopK", (TIES, ints(4)), outputs=2)
    for name, axis, last in itertools.product(("ArgMax", "ArgMin"), (0, -1), (0, 1)):
        yield Case(name, (TIES,), {"axis": axis, "select_last_index": last})
    yield from (Case(name, (IMAGE,), {"keepdims": 0}) for name in ("ArgMax", "ArgMin"))
    for exclusive, reverse in itertools.product((0, 1), (0, 1)):
        yield Case("CumSum", (LINE, np.int64(-1)), {"exclusive": exclusive, "reverse": reverse})
        yield Case("CumSum", (ints(1, 2, 3), ints(0)), {"exclusive": exclusive, "reverse": reverse})
    for upper in (0, 1):
        yield from (Case("Trilu", (LINE, *k), {"upper": upper}) for k in ((), (np.int64(1),), (np.int64(-2),)))
    for axis in (-1, 0, 1):
        values = np.array([0.5, 2.0], np.float32)
        yield Case("OneHot", (np.array([[0, 2], [-1, 5]]), np.int64(4), values), {"axis": axis})
    yield Case("NonZero", (np.array([[0, 1.5], [2, 0]], np.float32),))
    yield Case("Size", (IMAGE,))
    yield from (Case("EyeLike", (floats(3, 4),), {"k": k, "dtype": 7}) for k in (0, 1, -1))
    yield Case("Hardmax", (TIES,), {"axis": 1})
    yield Case("Hardmax", (TIES,))


def suppression() -> Iterator[Case]:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [1, 1, 0, 0.05]]], np.float32)
    scores = np.array([[[0.9, 0.75, 0.6, 0.95], [0.1, 0.8, 0.2, 0.7]]], np.float32)
    limits = (ints(3), np.array([0.5], np.float32), np.array([0.15], np.float32))
    yield Case("NonMaxSuppression", (boxes, scores, *limits))
    yield Case("NonMaxSuppression", (boxes[..., [0, 1, 2, 3]] + np.float32([5, 5, 1, 1]), scores, *limits),
               {"center_point_box": 1})  # fmt: skip
    yield Case("NonMaxSuppression", (boxes, scores, ints(1)))


def products() -> Iterator[Case]:
    yield Case("Einsum", (floats(2, 3, 4), floats(2, 5, 4)), {"equation": "bnc,bmc->bnm"})
    yield Case("Einsum", (floats(2, 3, 3),), {"equation": "bii->bi"})
    yield Case("Einsum", (floats(2, 3), floats(3)), {"equation": "...i,i"})


def norms() -> Iterator[Case]:
    for axis, p in itertools.product((1, -1), (1, 2)):
        yield Case("LpNormalization", (LINE,), {"axis": axis, "p": p})
    yield Case("LpNormalization", (LINE,))
    yield Case("LRN", (IMAGE,), {"size": 3})
    yield Case("LRN", (IMAGE,), {"size": 3, "alpha": 0.3, "beta": 0.5, "bias": 2.0})
    for x, p in itertools.product((LINE, IMAGE), (1, 2, 3)):
        rank = x.ndim - 2
        yield Case("GlobalLpPool", (x,), {"p": p})
        yield Case("LpPool", (x,), {"kernel_shape": [2] * rank, "strides": [2] * rank, "p": p})
        yield Case("LpPool", (x,), {"kernel_shape": [3] * rank, "pads": [1] * 2 * rank, "p": p})
    yield Case("LpPool", (IMAGE,), {"kernel_shape": [2, 2], "auto_pad": "VALID"})


def sampled() -> Iterator[Case]:
    grid = np.float32(1.2) * np.tanh(floats(2, 3, 5, 2))
    for mode, pad, corners in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        attributes = {"padding_mode": pad, "align_corners": corners}
        yield Case("GridSample", (IMAGE, grid), {"mode": mode, **attributes}, since=20)
        old = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
        yield Case("GridSample", (IMAGE, grid), {"mode": old, **attributes}, until=19)
    yield Case("GridSample", (VOLUME, np.tanh(floats(1, 2, 3, 2, 3))), {"mode": "linear"}, since=20)
    yield Case("Col2Im", (floats(1, 8, 9), ints(4, 4), ints(2, 2)))
    yield Case("Col2Im", (floats(2, 8, 4), ints(4, 4), ints(2, 2)), {"strides": [2, 2]})
    yield Case("Col2Im", (floats(1, 4, 36), ints(5, 5), ints(2, 2)), {"pads": [1, 1, 1, 1]})
    yield Case("Col2Im", (floats(1, 4, 9), ints(5, 5), ints(2, 2)), {"dilations": [2, 2]})


def transformed() -> Iterator[Case]:
    signal, window = floats(2, 40), np.hanning(16).astype(np.float32)
    for onesided in (0, 1):
        yield Case("STFT", (signal, np.int64(8), window), {"onesided": onesided})
        yield Case("STFT", (signal[..., None], np.int64(5), None, np.int64(12)), {"onesided": onesided})
        yield Case("DFT", (floats(2, 12, 1),), {"onesided": onesided})
        yield Case("DFT", (floats(2, 5, 9, 1), None, np.int64(2)), {"onesided": onesided}, since=20)
        yield Case("DFT", (floats(2, 5, 9, 1), np.int64(6)), {"onesided": onesided, "axis": 2}, until=19)
    for inverse in (0, 1):
        yield Case("DFT", (floats(2, 12, 2),), {"inverse": inverse})
    yield Case("Det", (floats(3, 4, 4),))
    yield Case("Compress", (IMAGE, np.array([1, 0, 1, 1], bool)), {"axis": 1})
    yield Case("Compress", (IMAGE, np.array([1, 0, 1, 1], bool)))
    yield Case("Unique", (np.round(IMAGE),))
    yield Case("Unique", (np.round(IMAGE[:, 0, 0, :2] / 4),), {"axis": 0})


def interpolated() -> Iterator[Case]:
    small = floats(1, 2, 6, 5)
    kinds = ({"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5}, {"mode": "cubic", "exclude_outside": 1})
    shrinking = (
        {"mode": mode, "antialias": 1, "exclude_outside": cut} for mode in ("linear", "cubic") for cut in (0, 1)
    )
    for kind in (*kinds, *shrinking):
        where = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        for coordinates in where[: 1 if "antialias" in kind else 4]:
            attributes = {**kind, "coordinate_transformation_mode": coordinates}
            yield from (
                Case("Resize", (small, None, None, ints(1, 2, *sizes)), attributes) for sizes in ((9, 11), (3, 2))
            )


def recurrent() -> Iterator[Case]:
    for name, gates, states in (("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)):
        more = {"linear_before_reset": 1} if name == "GRU" else {}
        for direction, layout in itertools.product(("forward", "reverse", "bidirectional"), (0, 1)):
            if layout:  # onnxruntime has no kernel for it
                continue
            count = 2 if direction == "bidirectional" else 1
            given = (floats(3, 2, 4), floats(count, 5 * gates, 4), floats(count, 5 * gates, 5))
            attributes = {"hidden_size": 5, "direction": direction, "layout": layout, **more}
            yield Case(name, given, attributes, outputs=states + 1)
            start = tuple(floats(count, 2, 5) for _ in range(states))
            yield Case(name, (*given, floats(count, 10 * gates), None, *start), attributes, outputs=states + 1)
        default = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Relu"]}[name]
        given = (floats(3, 2, 4), floats(1, 5 * gates, 4), floats(1, 5 * gates, 5))
        yield Case(name, given, {"hidden_size": 5, "activations": default, **more}, outputs=states + 1)


INDEX_GROUPS = (functions, picking, suppression, products, norms, sampled, transformed, interpolated, recurrent)
