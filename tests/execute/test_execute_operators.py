"""Every operator that torch computes, in every mode, against onnxruntime; modes it cannot compute are refused.

The cases are enumerated against the table of operators: a row with a torch function needs cases here. Each case runs in
every version that its operator has between opset 13 and 21, as far as that version knows its attributes and inputs.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from index_operator_cases import INDEX_GROUPS
from onnx import TensorProto, helper, numpy_helper
from operator_case import IMAGE, LINE, OPSETS, POSITIVE, ROW, VOLUME, Case, floats, ints

from quantry.execute.interpreter import interpretable, torch_call
from quantry.facts.operators import OPERATORS, operators_where

torch.set_num_threads(1)


def elementwise() -> Iterator[Case]:
    for name in (
        *("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Softplus"),
        *("Softsign", "Mish", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Identity", "Reciprocal", "Sin", "Cos"),
        *("Gelu", "Dropout", "Selu", "Celu", "ThresholdedRelu", "Shrink", "Atan", "Asinh"),
    ):
        yield from (Case(name, (x,)) for x in (IMAGE, np.float32(0.7), 30 * LINE))
    yield from (Case(name, (POSITIVE,)) for name in ("Sqrt", "Log"))
    yield Case("Round", (np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32),))
    yield Case("LeakyRelu", (IMAGE,), {"alpha": 0.3})
    yield Case("Elu", (IMAGE,), {"alpha": 0.3})
    yield Case("HardSigmoid", (IMAGE,), {"alpha": 0.3, "beta": 0.4})
    yield Case("Gelu", (IMAGE,), {"approximate": "tanh"})
    yield from (Case("PRelu", (IMAGE, slope)) for slope in (floats(4, 1, 1), floats(1), floats(2, 4, 7, 6), floats(6)))
    for low, high in ((-0.5, 0.7), (None, 0.7), (-0.5, None), (0.0, 6.0), (0.7, -0.5)):
        yield Case("Clip", (IMAGE, *(None if bound is None else np.float32(bound) for bound in (low, high))))
    yield Case("Clip", (IMAGE,))
    yield Case("Clip", (ints(-3, 0, 5), np.int64(-1), np.int64(2)))
    yield Case("Dropout", (IMAGE, np.float32(0.5)))
    yield Case("Dropout", (IMAGE, np.float32(0.5), np.array(0, bool)), {"seed": 3})
    yield Case("Not", (IMAGE > 0,))
    for kind in (*_TYPES,):
        yield Case("Cast", (2 * IMAGE,), {"to": kind})
        yield Case("Cast", (np.array([0, 1, 1, 0, 2]),), {"to": kind})


_TYPES = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT16),
    *(TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL),
)


def arithmetic() -> Iterator[Case]:
    pairs = ((IMAGE, ROW), (ROW, IMAGE), (IMAGE, np.float32(1.5)), (floats(3, 1), floats(1, 5)))
    for name in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean"):
        yield from (Case(name, pair) for pair in pairs)
    for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        yield from (Case(name, pair) for pair in pairs)
        yield Case(name, (ints(1, 2, 3), ints(2, 2, 2)))
    for name in ("And", "Or"):
        yield Case(name, (IMAGE > 0, ROW > 0))
    yield from (Case(name, (IMAGE, ROW, floats(6))) for name in ("Min", "Max", "Sum", "Mean"))
    yield from (Case(name, (IMAGE,)) for name in ("Min", "Max", "Sum", "Mean"))
    yield from (Case(name, (ints(7, -7, 9), ints(2, 2, 4))) for name in ("Add", "Sub", "Mul", "Div", "Min", "Max"))
    yield Case("Div", (ints(7, -7, 7, -7), ints(2, 2, -2, -2)))
    yield from (Case("Pow", (POSITIVE, np.float32(power))) for power in (2.0, 0.5, -1.0, 1.5))
    yield Case("Pow", (IMAGE, ints(2)))
    yield Case("Pow", (ints(2, 3, 4), np.array([2.0, 0.5, 1.0], np.float32)))
    yield Case("Pow", (ints(2, 3), ints(2, 3)))
    yield Case("Mod", (IMAGE, np.float32(0.7)), {"fmod": 1})
    yield from (Case("Mod", (ints(7, -7, 7, -7), ints(3, 3, -3, -3)), {"fmod": mode}) for mode in (0, 1))
    yield Case("Where", (IMAGE > 0, floats(4, 7, 6), floats(1)))
    yield Case("Where", (np.array([True, False]), ints(1, 2), ints(3, 4)))


def linear() -> Iterator[Case]:
    kernels = {LINE.ndim: (3,), IMAGE.ndim: (3, 2), VOLUME.ndim: (3, 2, 2)}
    for x in (LINE, IMAGE, VOLUME):
        rank, kernel = x.ndim - 2, kernels[x.ndim]
        for bias, group in itertools.product((False, True), (1, 2, 4)):
            weights = (floats(8, 4 // group, *kernel), *((floats(8),) if bias else ()))
            yield Case("Conv", (x, *weights), {"group": group, "kernel_shape": list(kernel)})
            weights = (floats(4, 3, *kernel), *((floats(3 * group),) if bias else ()))
            yield Case("ConvTranspose", (x, *weights), {"group": group, "kernel_shape": list(kernel)})
        weight, turned = floats(3, 4, *kernel), floats(4, 3, *kernel)
        modes = (
            {"strides": [2] * rank},
            {"dilations": [2] * rank},
            {"pads": [1] * 2 * rank},
            {"pads": [1] * rank + [0] * rank, "strides": [2] * rank},
            {"strides": [2] * rank, "pads": [0] * rank + [1] * rank},
            *({"auto_pad": mode, "strides": [2] * rank} for mode in ("VALID", "SAME_UPPER", "SAME_LOWER")),
            *({"auto_pad": mode} for mode in ("SAME_UPPER", "SAME_LOWER")),
        )
        for attributes in modes:
            yield Case("Conv", (x, weight), attributes)
            yield Case("ConvTranspose", (x, turned), attributes)
            yield Case("ConvTranspose", (x, turned, floats(3)), attributes)
        for padding in ([1] * 2 * rank, [1] * rank + [0] * rank):
            attributes = {"strides": [3] * rank, "output_padding": [1] * rank, "pads": padding}
            yield Case("ConvTranspose", (x, turned, floats(3)), attributes)
        goal = [2 * length + 1 for length in x.shape[2:]]
        for mode in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
            attributes = {"strides": [2] * rank, "output_shape": goal, "auto_pad": mode}
            yield Case("ConvTranspose", (x, turned, floats(3)), attributes)
    for left, right in itertools.product((0, 1), (0, 1)):
        a, b = floats(*((3, 5) if left else (5, 3))), floats(*((4, 3) if right else (3, 4)))
        attributes = {"transA": left, "transB": right}
        yield Case("Gemm", (a, b), attributes)
        for c in (floats(4), floats(1), floats(5, 4), floats(5, 1), np.float32(0.5)):
            yield Case("Gemm", (a, b, c), attributes | {"alpha": 0.5, "beta": 2.0})
    shapes = (((5, 3), (3, 4)), ((2, 5, 3), (3, 4)), ((2, 1, 5, 3), (6, 3, 4)), ((3,), (3, 4)), ((5, 3), (3,)))
    yield from (Case("MatMul", (floats(*left), floats(*right))) for left, right in (*shapes, ((3,), (3,))))


def normalization() -> Iterator[Case]:
    yield from (Case("LayerNormalization", (IMAGE, floats(6), floats(6)), {"axis": axis}) for axis in (-1, 3))
    yield Case("LayerNormalization", (IMAGE, floats(7, 6)), {"axis": 2, "epsilon": 0.01, "stash_type": 1})
    yield Case("LayerNormalization", (IMAGE, floats(1), floats(1)), {"axis": 1})
    for x in (LINE, IMAGE, VOLUME):
        yield Case("InstanceNormalization", (x, floats(4), floats(4)), {"epsilon": 0.01})
        statistics = (floats(4), floats(4), floats(4), np.abs(floats(4)))
        yield Case("BatchNormalization", (x, *statistics), {"epsilon": 0.01, "momentum": 0.5})
        yield Case("BatchNormalization", (x, *statistics), {"training_mode": 0})
        yield Case("GroupNormalization", (x, floats(4), floats(4)), {"num_groups": 2}, since=21)
        yield Case("GroupNormalization", (x, floats(2), floats(2)), {"num_groups": 2, "epsilon": 0.01}, until=20)


def pooling() -> Iterator[Case]:
    yield from (Case(name, (x,)) for name in ("GlobalMaxPool", "GlobalAveragePool") for x in (LINE, IMAGE, VOLUME))
    for x, ceil in itertools.product((LINE, IMAGE, VOLUME), (0, 1)):
        rank = x.ndim - 2
        sizes = {"kernel_shape": [3, 2, 2][:rank], "ceil_mode": ceil}
        modes = (
            {},
            {"strides": [2] * rank},
            {"strides": [2] * rank, "pads": [1] * 2 * rank},
            {"strides": [2] * rank, "pads": [1] * rank + [0] * rank},
            {"strides": [2] * rank, "pads": [0] * rank + [1] * rank},
            {"strides": [3] * rank, "pads": [0] * rank + [1] * rank},
        )
        for attributes in modes:
            yield Case("MaxPool", (x,), sizes | attributes)
            yield Case("MaxPool", (x,), sizes | attributes | {"dilations": [2, 1, 1][:rank]})
            for count in (0, 1):
                yield Case("AveragePool", (x,), sizes | attributes | {"count_include_pad": count})
        for pad, stride in itertools.product(("VALID", "SAME_UPPER", "SAME_LOWER"), (1, 2)):
            if not ceil:
                attributes = {**sizes, "auto_pad": pad, "strides": [stride] * rank}
                yield from (Case(name, (x,), attributes) for name in ("MaxPool", "AveragePool"))
    yield Case("AveragePool", (IMAGE,), {"kernel_shape": [2, 2], "dilations": [1, 1]})
    yield Case("MaxPool", (IMAGE,), {"kernel_shape": [2, 2], "storage_order": 1})


def reductions() -> Iterator[Case]:
    for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
        name = f"Reduce{kind}"
        for axes, keep in itertools.product(([1], [2, -1], [-1, 0], [0, 1, 2, 3]), (0, 1)):
            yield Case(name, (POSITIVE,), {"axes": axes, "keepdims": keep})
            yield Case(name, (POSITIVE, ints(*axes)), {"keepdims": keep})
        yield from (Case(name, (POSITIVE,), {"keepdims": keep}) for keep in (0, 1))
        for empty in (0, 1):
            yield Case(name, (POSITIVE, np.zeros(0, np.int64)), {"noop_with_empty_axes": empty})
        yield Case(name, (POSITIVE,), {"noop_with_empty_axes": 1})
    for name, axis in itertools.product(("Softmax", "LogSoftmax"), (-1, 0, 1, 2)):
        yield Case(name, (IMAGE,), {"axis": axis})
    yield from (Case(name, (IMAGE,)) for name in ("Softmax", "LogSoftmax"))


def movement() -> Iterator[Case]:
    yield from (
        Case("Reshape", (IMAGE, ints(*shape))) for shape in ((0, -1, 6), (-1,), (1, -1), (2, 4, 42), (0, 0, -1))
    )
    yield Case("Reshape", (floats(0, 3), ints(3, 0)), {"allowzero": 1})
    yield from (Case("Flatten", (IMAGE,), {"axis": axis}) for axis in (-4, -1, 0, 1, 2, 4))
    yield from (Case("Transpose", (IMAGE,), given) for given in ({}, {"perm": [0, 2, 3, 1]}, {"perm": [3, 2, 1, 0]}))
    yield from (Case("Squeeze", (floats(1, 3, 1), *axes)) for axes in ((), (ints(-1),), (ints(0, 2),), (ints(0),)))
    yield from (Case("Unsqueeze", (floats(3, 2), ints(*axes))) for axes in ((0,), (0, -1), (3, 1), (-2,)))
    yield from (Case("Concat", (IMAGE, floats(2, 4, 7, 2)), {"axis": axis}) for axis in (-1, 3))
    yield Case("Concat", (ints(1), ints(2, 3), ints(4)), {"axis": 0})
    yield from (Case("Split", (IMAGE, ints(1, 3)), {"axis": axis}, outputs=2) for axis in (1, -3))
    yield Case("Split", (IMAGE,), {"axis": 1}, outputs=2, until=17)
    yield from (Case("Split", (IMAGE,), {"axis": 2, "num_outputs": n}, outputs=n) for n in (2, 3, 7))
    slices = (
        (ints(1), ints(3)),
        (ints(1, -1), ints(3, -6), ints(1, 3), ints(1, -2)),
        (ints(-2), ints(2**62), ints(-1)),
        (ints(-1), ints(-(2**62)), ints(2), ints(-1)),
        (ints(100), ints(1), ints(3), ints(-2)),
        (ints(0, 0), ints(100, 3), ints(2, 3), ints(3, 2)),
        (ints(5), ints(2), ints(2)),
    )
    yield from (Case("Slice", (IMAGE, *given)) for given in slices)
    for axis, index in itertools.product(
        (0, 1, -1), (np.int64(-1), ints(1), ints(0, -1, -2), np.array([[0, -1], [1, -2]]))
    ):
        yield Case("Gather", (floats(3, 4, 5), index), {"axis": axis})
    yield Case("Gather", (floats(3, 4), np.array([-1, 0], np.int32)))
    yield from (Case("Expand", (floats(3, 1), ints(*shape))) for shape in ((2, 1, 4), (3, 4), (1, 1)))
    yield Case("Tile", (floats(2, 3), ints(2, 1)))
    yield from (Case("DepthToSpace", (floats(1, 8, 2, 3),), {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD"))
    yield Case("SpaceToDepth", (floats(1, 2, 4, 6),), {"blocksize": 2})
    yield from (Case("Shape", (IMAGE,), given) for given in ({}, {"start": 1}, {"end": -1}, {"start": -2, "end": 3}))
    for given in ((1.0, 4.0, 0.5), (5.0, -1.0, -2.0)):
        yield Case("Range", tuple(np.float32(value) for value in given))
    yield Case("Range", (np.int64(1), np.int64(7), np.int64(3)))
    yield Case("ConstantOfShape", (ints(2, 3),))
    yield Case("ConstantOfShape", (ints(2, 3),), {"value": numpy_helper.from_array(np.array([7], np.int64))})
    yield Case("Constant", (), {"value": numpy_helper.from_array(ROW)})


def padding() -> Iterator[Case]:
    amounts = (
        *((0, 0, 1, 2, 0, 0, 0, 1), (0, 0, 0, 0, 0, 0, 2, 2), (1, 2, 0, 1, 0, 1, 1, 0), (0, 0, -1, 2, 0, 0, 1, -2)),
        (0, 0, 3, 3, 0, 0, 3, 3),
    )
    for mode, pads in itertools.product(("constant", "edge", "reflect", "wrap"), amounts):
        # onnxruntime repeats the axis after cropping it, in an order that the standard does not give.
        if mode == "wrap" and min(pads) < 0:
            continue
        if mode == "reflect" and min(pads) < 0:
            continue
        yield Case("Pad", (IMAGE, ints(*pads)), {"mode": mode})
        if mode == "constant":
            yield Case("Pad", (IMAGE, ints(*pads), np.float32(0.5)), {"mode": mode})
    for mode in ("constant", "edge", "reflect"):
        yield Case("Pad", (IMAGE, ints(1, 2, 0, 1), None, ints(-1, 2)), {"mode": mode})
        yield Case("Pad", (LINE, ints(0, 0, 2, 0, 0, 1)), {"mode": mode})
        yield Case("Pad", (VOLUME, ints(0, 0, 1, 1, 0, 0, 0, 1, 0, 2)), {"mode": mode})
        yield Case("Pad", (floats(5), ints(2, 1)), {"mode": mode})


COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")


def resizing() -> Iterator[Case]:
    small = floats(1, 2, 3, 5)
    for factors in ((1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 2, 1.5), (1, 1, 0.5, 0.4), (1, 1, 2.34, 0.45), (2, 1, 1, 2)):
        scales = np.array(factors, np.float32)
        for where in COORDINATES:
            if factors[0] == 1:  # onnxruntime does not interpolate along the batch
                attributes = {"mode": "linear", "coordinate_transformation_mode": where}
                yield Case("Resize", (small, None, scales), attributes)
            if where == "half_pixel_symmetric":
                continue
            for near in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                attributes = {"mode": "nearest", "coordinate_transformation_mode": where, "nearest_mode": near}
                yield Case("Resize", (small, None, scales), attributes)
    for where, mode in itertools.product(COORDINATES, ("nearest", "linear")):
        attributes = {"mode": mode, "coordinate_transformation_mode": where}
        if (where, mode) == ("half_pixel_symmetric", "nearest"):
            continue
        for sizes in ((1, 2, 7, 7), (1, 2, 6, 10), (1, 2, 1, 3), (1, 2, 3, 5)):
            yield Case("Resize", (small, None, None, ints(*sizes)), attributes)
    empty = np.zeros(0, np.float32)
    yield Case("Resize", (small, empty, np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"})
    yield Case("Resize", (small, None, None, ints(6, 10)), {"mode": "linear", "axes": [2, 3]})
    yield Case("Resize", (small, None, np.array([2.0], np.float32)), {"mode": "nearest", "axes": [-1]})
    yield Case("Resize", (floats(1, 2, 5), None, np.array([1, 1, 2], np.float32)), {"mode": "linear"})
    yield Case("Resize", (floats(1, 2, 3, 2, 3), None, np.array([1, 1, 2, 2, 2], np.float32)), {"mode": "linear"})


GROUPS = (
    elementwise,
    arithmetic,
    linear,
    normalization,
    pooling,
    reductions,
    movement,
    padding,
    resizing,
    *INDEX_GROUPS,
)
CASES = tuple((case, opset) for group in GROUPS for case in group() for opset in case.versions())


def model_of(case: Case, opset: int) -> onnx.ModelProto:
    names = ["" if value is None else f"x{index}" for index, value in enumerate(case.inputs)]
    outputs = [f"y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.operator, names, outputs, **case.attributes)
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, case.inputs, strict=True)
        if value is not None
    ]
    graph = helper.make_graph([node], "case", fed, [helper.make_empty_tensor_value_info(name) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in _given(case, names)]
    model.graph.initializer.extend(constants)
    return onnx.shape_inference.infer_shapes(model)


def _given(case: Case, names: list[str]) -> list[tuple[str, np.ndarray]]:
    return [(name, value) for name, value in zip(names, case.inputs, strict=True) if value is not None]


def by_onnxruntime(model: onnx.ModelProto) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {})


def by_torch(node: ir.Node, case: Case, opset: int) -> list[torch.Tensor]:
    inputs = [None if value is None else torch.from_numpy(np.array(value)) for value in case.inputs]
    if inputs and inputs[0] is not None and inputs[0].is_floating_point():
        inputs[0].requires_grad_()
    results = torch_call(node, opset)(inputs)
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize(
    ("case", "opset"),
    CASES,
    ids=[f"{case.operator}-{opset}-{number}" for number, (case, opset) in enumerate(CASES)],
)
def test_operator_gives_what_onnxruntime_gives(case: Case, opset: int) -> None:
    proto = model_of(case, opset)
    expected = by_onnxruntime(proto)
    (node,) = ir.serde.deserialize_model(proto).graph
    assert interpretable(node) is None
    results = by_torch(node, case, opset)
    for value in node.inputs:  # now with settings that are computed
        if value is not None:
            value.const_value = None
    for result, computed, wanted in zip(results, by_torch(node, case, opset), expected, strict=True):
        assert torch.equal(computed, result) or torch.isnan(result).any()
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result.detach().numpy(), wanted, rtol=2e-4, atol=2e-5)
        assert result.detach().numpy().dtype == wanted.dtype
    if results[0].requires_grad:
        torch.stack([result.sum() for result in results]).sum().backward()


def test_every_operator_of_the_table_has_cases() -> None:
    assert {case.operator for case, _ in CASES} == set(operators_where(lambda row: row.torch))


@pytest.mark.parametrize("name", operators_where(lambda row: row.torch))
def test_every_version_of_an_operator_has_a_case(name: str) -> None:
    versions = {onnx.defs.get_schema(name, opset).since_version for opset in OPSETS if _exists(name, opset)}
    tried = {onnx.defs.get_schema(name, opset).since_version for case, opset in CASES if case.operator == name}
    assert tried == versions


@pytest.mark.parametrize("name", operators_where(lambda row: row.torch))
def test_every_attribute_of_an_operator_has_a_case_or_is_refused(name: str) -> None:
    attributes = {
        key for opset in OPSETS if _exists(name, opset) for key in onnx.defs.get_schema(name, opset).attributes
    }
    tried = {key for case, _ in CASES if case.operator == name for key in case.attributes}
    refused = {key for case in REFUSED if case.operator == name for key in case.attributes}
    assert attributes - tried - refused <= WITHOUT_CASES.get(name, set())


WITHOUT_CASES = {
    "BatchNormalization": {"momentum"},
    # The type of the statistics is always float32 or better.
    "GroupNormalization": {"stash_type"},
    "CastLike": {"saturate"},
    "Cast": {"saturate"},  # only matters for 8-bit floats, which are refused
}


def _exists(name: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(name, opset)
    except onnx.defs.SchemaError:
        return False
    return True


TWO = np.array([1, 1, 2, 2], np.float32)
REFUSED = (
    Case("Resize", (IMAGE, floats(8), TWO), {"coordinate_transformation_mode": "tf_crop_and_resize"}),
    Case(
        "Resize",
        (IMAGE, floats(8), TWO),
        {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 1.0},
    ),
    Case("Resize", (IMAGE, None, TWO), {"mode": "nearest", "coordinate_transformation_mode": "half_pixel_symmetric"}),
    Case("Resize", (IMAGE, None, None, ints(2, 4, 9, 9)), {"keep_aspect_ratio_policy": "not_larger"}),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    Case("AveragePool", (floats(1, 1, 3, 3, 3, 3),), {"kernel_shape": [2, 2, 2, 2]}),
    Case("MaxPool", (floats(1, 1, 3, 3, 3, 3),), {"kernel_shape": [2, 2, 2, 2]}),
    Case("Conv", (floats(1, 1, 3, 3, 3, 3), floats(1, 1, 2, 2, 2, 2))),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [2, 2]}, outputs=2),
    Case("LayerNormalization", (IMAGE, floats(6)), outputs=2),
    Case("BatchNormalization", (IMAGE, *(np.abs(floats(4)) for _ in range(4))), {"training_mode": 1}),
    Case("Dropout", (IMAGE, np.float32(0.5), np.array(1, bool))),
    Case("Cast", (IMAGE,), {"to": TensorProto.STRING}),
    Case("Cast", (IMAGE,), {"to": TensorProto.FLOAT8E4M3FN}),
    *(Case("Constant", (), {name: value}) for name, value in (
        ("value_int", 3), ("value_ints", [3]), ("value_float", 3.0), ("value_floats", [3.0]), ("value_string", "a"),
        ("value_strings", ["a"]),
    )),
    Case("Constant", (), {"sparse_value": None}),
    Case("Unique", (LINE,), {"sorted": 0}),
    Case("Unique", (LINE,), outputs=2),
    Case("DFT", (floats(2, 3, 8, 1),)),
    Case("LSTM", (floats(3, 2, 4), floats(1, 20, 4), floats(1, 20, 5), None, np.int32([3, 2])), {"hidden_size": 5}),
    Case("LSTM", (floats(3, 2, 4), floats(1, 20, 4), floats(1, 20, 5)), {"hidden_size": 5, "clip": 1.0}),
    Case("LSTM", (floats(3, 2, 4), floats(1, 20, 4), floats(1, 20, 5)), {"hidden_size": 5, "input_forget": 1}),
    Case("LSTM", (floats(3, 2, 4), floats(1, 20, 4), floats(1, 20, 5)), {"hidden_size": 5, "activation_alpha": [1.0]}),
    Case("LSTM", (floats(3, 2, 4), floats(1, 20, 4), floats(1, 20, 5)), {"hidden_size": 5, "activation_beta": [1.0]}),
    Case("GRU", (floats(3, 2, 4), floats(1, 15, 4), floats(1, 15, 5)), {"hidden_size": 5, "clip": 1.0}),
    Case("GRU", (floats(3, 2, 4), floats(1, 15, 4), floats(1, 15, 5)), {"hidden_size": 5, "activation_alpha": [1.0]}),
    Case("GRU", (floats(3, 2, 4), floats(1, 15, 4), floats(1, 15, 5)), {"hidden_size": 5, "activation_beta": [1.0]}),
    Case("GRU", (floats(3, 2, 4), floats(1, 15, 4), floats(1, 15, 5)), {"hidden_size": 5}),
    Case("RNN", (floats(3, 2, 4), floats(1, 5, 4), floats(1, 5, 5)), {"hidden_size": 5, "clip": 1.0}),
    Case("RNN", (floats(3, 2, 4), floats(1, 5, 4), floats(1, 5, 5)), {"hidden_size": 5, "activation_alpha": [1.0]}),
    Case("RNN", (floats(3, 2, 4), floats(1, 5, 4), floats(1, 5, 5)), {"hidden_size": 5, "activation_beta": [1.0]}),
    Case("RNN", (floats(3, 2, 4), floats(1, 5, 4), floats(1, 5, 5)), {"hidden_size": 5, "activations": ["Sigmoid"]}),
    Case("LpPool", (IMAGE,), {"kernel_shape": [2, 2], "ceil_mode": 1}),
    Case("LpPool", (IMAGE,), {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    Case("GridSample", (VOLUME, floats(1, 3, 3, 3, 3)), {"mode": "cubic"}),
    Case("Col2Im", (floats(1, 8, 9), ints(4, 4), ints(2, 2)), {"pads": [0, 1, 1, 0]}),
)  # fmt: skip


@pytest.mark.parametrize("case", [case for case in REFUSED if None not in case.attributes.values()], ids=str)
def test_mode_that_torch_does_not_compute_is_refused(case: Case) -> None:
    (node,) = ir.serde.deserialize_model(model_of(case, max(case.versions(), default=19))).graph
    assert interpretable(node)


def test_attribute_that_no_function_takes_is_refused() -> None:
    node = ir.node("Relu", [ir.Value(name="x")], {"surprise": 1})
    assert "surprise" in (interpretable(node) or "")


def test_operator_of_another_domain_is_refused() -> None:
    assert "vendor" in (interpretable(ir.node("Relu", [ir.Value(name="x")], domain="vendor")) or "")


def test_softmax_before_opset_13_runs_over_all_axes_from_the_given_one_on() -> None:
    for name in ("Softmax", "LogSoftmax"):
        case = Case(name, (IMAGE,), {"axis": 2})
        proto = model_of(case, 12)
        (node,) = ir.serde.deserialize_model(proto).graph
        np.testing.assert_allclose(by_torch(node, case, 12)[0].detach(), by_onnxruntime(proto)[0], rtol=1e-5)


def test_batch_of_several_samples_passes_sizes_made_for_one() -> None:
    for case in (Case("Reshape", (IMAGE, ints(1, -1))), Case("Reshape", (IMAGE, ints(1, 28, 6)))):
        (node,) = (
            ir.serde.deserialize_model(model_of(case, 17)).graph
            if case.inputs[1][1] == -1
            else (ir.node("Reshape", [ir.Value(name="x"), ir.Value(name="s", const_value=ir.tensor(case.inputs[1]))]),)
        )
        assert torch_call(node, 17, keep_batch=True)([torch.from_numpy(IMAGE), None]).shape[0] == 2


def test_functions_named_by_the_table_exist() -> None:
    from quantry.execute.interpreter.torch_call import torch_function

    assert all(callable(torch_function(row.torch)) for row in OPERATORS.values() if row.torch)
