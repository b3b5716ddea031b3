"""Every operator of the torch interpreter against onnxruntime, and whole models as the emit stage writes them."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from tune_models import chain, inputs, network, task_of

import quantry.demo
from quantry.emit import emit
from quantry.execute.interpreter.operators import OPERATORS
from quantry.execute.trainable_graph import TrainableGraph, Trained, interpretable_part
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.tensor_params import QuantParams
from quantry.prepare import prepare
from quantry.recipe import EmitOptions, PrepareOptions, find_preset
from quantry.tune import TuneTask

torch.set_num_threads(1)

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One node: its inputs after ``x``, and its attributes in ONNX text."""

    operator: str
    x: np.ndarray
    constants: tuple[np.ndarray | None, ...] = ()
    attributes: str = ""
    opset: int = 18
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.operator}{self.attributes}"


IMAGE = floats(2, 4, 7, 6)
SIMPLE = (
    "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Softplus", "Softsign",
    "Mish", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Identity", "Reciprocal", "Sin", "Cos", "GlobalMaxPool",
    "GlobalAveragePool", "Softmax", "LogSoftmax", "ReduceMean", "Flatten", "Transpose", "Shape",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean", "Greater", "Less", "GreaterOrEqual",
    "LessOrEqual", "Equal",
)  # fmt: skip
CONV = "<group = 2, strides = [2, 1], dilations = [1, 2], pads = [1, 0, 2, 1]>"
TRANSPOSED = "<group = 2, strides = [2, 3], pads = [1, 0, 0, 1], output_padding = [1, 2]>"
FACTORS = np.array([1, 1, 2, 1.5], np.float32)
CASES = (
    *(Case(operator, IMAGE) for operator in SIMPLE),
    Case("Sqrt", np.abs(IMAGE)),
    Case("Log", np.abs(IMAGE) + 0.1),
    Case("Not", IMAGE > 0),
    Case("Gelu", IMAGE, opset=20),
    Case("Gelu", IMAGE, attributes='<approximate = "tanh">', opset=20),
    Case("Clip", IMAGE, (np.float32(-0.5), np.float32(0.7))),
    Case("Clip", IMAGE, (None, np.float32(0.7))),
    Case("PRelu", IMAGE, (floats(4, 1, 1),)),
    *(Case(operator, IMAGE, (floats(4, 1, 6),)) for operator in BINARY),
    *(Case(operator, IMAGE > 0, (floats(4, 1, 6) > 0,)) for operator in ("And", "Or")),
    Case("Pow", np.abs(IMAGE), (np.float32(1.5),)),
    Case("Mod", IMAGE, (np.float32(0.7),), "<fmod = 1>"),
    Case("Div", ints(7, -7, 9), (ints(2, 2, 4),)),
    Case("Where", IMAGE > 0, (floats(4, 7, 6), floats(1))),
    Case("Conv", IMAGE, (floats(6, 2, 3, 2), floats(6)), CONV),
    Case("Conv", IMAGE, (floats(6, 4, 3, 3),), '<auto_pad = "SAME_UPPER", strides = [2, 2]>'),
    Case("Conv", IMAGE, (floats(6, 4, 2, 2),), '<auto_pad = "SAME_LOWER">'),
    Case("Conv", floats(1, 3, 9), (floats(2, 3, 3),)),
    Case("ConvTranspose", IMAGE, (floats(4, 3, 3, 2), floats(6)), TRANSPOSED),
    Case("ConvTranspose", IMAGE, (floats(4, 3, 3, 3),), '<auto_pad = "SAME_UPPER", strides = [2, 2]>'),
    Case("Gemm", floats(5, 3), (floats(4, 3), floats(4)), "<transB = 1, alpha = 0.5, beta = 2.0>"),
    Case("Gemm", floats(3, 5), (floats(3, 4),), "<transA = 1>"),
    Case("MatMul", floats(2, 5, 3), (floats(3, 4),)),
    Case("LayerNormalization", IMAGE, (floats(6), floats(6))),
    Case("LayerNormalization", IMAGE, (floats(7, 6),), "<axis = 2, epsilon = 0.01>"),
    Case("InstanceNormalization", IMAGE, (floats(4), floats(4))),
    Case("GroupNormalization", IMAGE, (floats(4), floats(4)), "<num_groups = 2>", opset=21),
    Case("BatchNormalization", IMAGE, (floats(4), floats(4), floats(4), np.abs(floats(4)))),
    Case("MaxPool", IMAGE, attributes="<kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 1]>"),
    Case("MaxPool", IMAGE, attributes="<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>"),
    Case("AveragePool", IMAGE, attributes="<kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 1]>"),
    Case("AveragePool", IMAGE, attributes="<kernel_shape = [3, 2], pads = [1, 1, 1, 1], count_include_pad = 1>"),
    *(Case(f"Reduce{kind}", np.abs(IMAGE), (ints(2, -1),), "<keepdims = 0>") for kind in
      ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")),
    Case("Softmax", IMAGE, attributes="<axis = 1>"),
    Case("Reshape", IMAGE, (ints(0, -1, 6),)),
    Case("Squeeze", floats(1, 3, 1), (ints(-1),)),
    Case("Unsqueeze", floats(3, 2), (ints(0, -1),)),
    Case("Concat", IMAGE, (floats(2, 4, 7, 2),), "<axis = -1>"),
    Case("Split", IMAGE, (ints(1, 3),), "<axis = 1>", outputs=2),
    Case("Slice", IMAGE, (ints(1, -1), ints(3, -6), ints(1, 3), ints(1, -2))),
    Case("Gather", IMAGE, (np.array([[0, -1], [2, 1]]),), "<axis = 1>"),
    Case("Expand", floats(3, 1), (ints(2, 1, 4),)),
    Case("Tile", floats(2, 3), (ints(2, 1),)),
    Case("Pad", IMAGE, (ints(0, 0, 1, 2, 0, 0, 0, 1), np.float32(0.5))),
    Case("Pad", IMAGE, (ints(0, 0, 1, 2, 0, 0, 0, 1),), '<mode = "reflect">'),
    Case("Pad", IMAGE, (ints(0, 0, 1, 2, 0, 0, 0, 1),), '<mode = "edge">'),
    Case("DepthToSpace", floats(1, 8, 2, 3), attributes="<blocksize = 2>"),
    Case("DepthToSpace", floats(1, 8, 2, 3), attributes='<blocksize = 2, mode = "CRD">'),
    Case("SpaceToDepth", floats(1, 2, 4, 6), attributes="<blocksize = 2>"),
    Case("Cast", IMAGE, attributes="<to = 7>"),
    Case("ConstantOfShape", ints(2, 3)),
    Case("Range", np.array(1.0, np.float32), (np.array(4.0, np.float32), np.array(0.5, np.float32))),
    *(Case("Resize", IMAGE, (None, FACTORS), f'<mode = "{mode}", coordinate_transformation_mode = "{where}"{extra}>')
      for mode, extra in (("nearest", ', nearest_mode = "floor"'), ("nearest", ""), ("linear", ""))
      for where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")),
    Case("Resize", IMAGE, (None, None, ints(2, 4, 10, 3)), '<mode = "linear">'),
)  # fmt: skip


def model_of(case: Case) -> onnx.ModelProto:
    names = [f"c{at}" if value is not None else "" for at, value in enumerate(case.constants)]
    outputs = ", ".join(f"y{at}" for at in range(case.outputs))
    kind = {np.dtype(np.float32): "float", np.dtype(np.int64): "int64", np.dtype(bool): "bool"}[case.x.dtype]
    shape = f"[{', '.join(map(str, case.x.shape))}]" if case.x.shape else ""
    text = f"""<ir_version: 9, opset_import: ["" : {case.opset}]>
    net ({kind}{shape} x) => ({", ".join(f"float y{at}" for at in range(case.outputs))})
    {{ {outputs} = {case.operator} {case.attributes} ({", ".join(["x", *names])}) }}"""
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.ClearField("type")
    for name, value in zip(names, case.constants, strict=True):
        if value is not None:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_gives_what_onnxruntime_gives(case: Case) -> None:
    model = model_of(case)
    inferred = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(inferred.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": case.x})
    import onnx_ir as ir

    graph = ir.serde.deserialize_model(inferred)
    names = [value.name for value in graph.graph.outputs]
    ours = TrainableGraph(graph, list(graph.graph), QuantPlan(), QuantParams(), Trained(weights=False, biases=False))
    results = ours.run({"x": torch.from_numpy(np.array(case.x))}, names, quantized=False)
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(results[name].numpy(), value, rtol=2e-4, atol=2e-5)


def test_every_operator_has_a_case_or_is_part_of_a_model_here() -> None:
    tried = {case.operator for case in CASES} | {"Dropout", "Constant"}
    assert set(OPERATORS) <= tried


def quantized_outputs(task: TuneTask, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = emit(task.model, task.plan, task.params, EmitOptions(), {}).to_bytes()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)


def interpreted(task: TuneTask, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    graph = TrainableGraph(task.model.model, list(task.model.model.graph), task.plan, task.params, Trained())
    names = [value.name or "" for value in task.model.model.graph.outputs]
    with torch.no_grad():
        results = graph.run({name: torch.from_numpy(array) for name, array in feed.items()}, names, quantized=True)
    return [results[name].numpy() for name in names]


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.square(ours - theirs).mean() / np.square(theirs).mean())


@pytest.mark.parametrize("preset", ["XINT8", "CPU_INT8", "A16W8", "S8S8_AAWS", "BF16"])
@pytest.mark.parametrize("model", [chain, network])
def test_quantized_graph_gives_what_the_emitted_model_gives(preset: str, model) -> None:  # type: ignore[no-untyped-def]
    samples = inputs((3, 8, 8) if model is chain else (4, 9, 8), 3)
    task = task_of(model(), samples, find_preset(preset).recipe.plan)
    for ours, theirs in zip(interpreted(task, samples[0]), quantized_outputs(task, samples[0]), strict=True):
        assert distance(ours, theirs) < 1e-4


def test_embedded_detector_is_interpreted_exactly_as_it_is_emitted() -> None:
    samples = list(quantry.demo.calibration_inputs(2))
    task = task_of(onnx.load(quantry.demo.model_path()), samples, find_preset("XINT8").recipe.plan)
    part = interpretable_part(task.model.model)
    assert not part.notes
    assert len(part.nodes) == len(list(task.model.model.graph))
    for ours, theirs in zip(interpreted(task, samples[0]), quantized_outputs(task, samples[0]), strict=True):
        assert distance(ours, theirs) < 1e-4


def test_unknown_operator_ends_the_trained_part_with_a_reason() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 4] x) => (float[1, 4] y, int64[1, 4] z)
    {
        a = Relu (x)
        b = CumSum (a, one)
        y = Add (a, b)
        z = Shape (b)
    }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.int64(1), "one"))
    prepared: FloatModel = prepare(model_source(model), PrepareOptions())
    part = interpretable_part(prepared.model)
    assert part.targets == ("a",)
    assert "CumSum" in part.notes[0]
