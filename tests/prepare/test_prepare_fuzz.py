"""Invalid models end in a `ModelError` that says where, valid ones in a model that runs; `make fuzz` tries more."""

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benchmarks.fuzz.bases import base_models
from benchmarks.fuzz.outcome import RECIPES, outcome_of
from benchmarks.fuzz.sweep import model_of
from onnx import TensorProto, helper, numpy_helper

import quantry
from quantry.data.spool import STREAM_LIMIT
from quantry.errors import InternalError, ModelError, RecipeError
from quantry.recipe.plain_text import yaml_value
from quantry.runtime.acceptance import check_written

MODELS = base_models()


def linear(**attributes: Any) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Gemm", ["x", "w"], ["y"], name="fc", **attributes)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
            [weight],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def quantized(model: onnx.ModelProto, recipe: str = "S8S8_AAWS") -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantry.quantize(model, None, recipe, store=None).to_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_unchanged_models_are_quantized(name: str) -> None:
    outcome = outcome_of(MODELS[name].SerializeToString(), "S8S8_AAWS")
    assert outcome.kind == "quantized", outcome


# A branch that is not taken still read a weight; a graph given by reference; a Conv with a flat weight; 64 TiB claimed.
@pytest.mark.parametrize("seed", [4503, 4551, 5596, 4369])
@pytest.mark.filterwarnings("ignore")
def test_models_that_once_failed_are_quantized_or_refused(seed: int) -> None:
    outcome = outcome_of(model_of(seed), RECIPES[seed % len(RECIPES)])
    assert not outcome.is_failure, outcome


@pytest.mark.parametrize("first", range(0, 75, 15))
@pytest.mark.filterwarnings("ignore")
def test_mutated_models_are_quantized_or_refused(first: int) -> None:
    for seed in range(first, first + 15):
        outcome = outcome_of(model_of(seed), RECIPES[seed % len(RECIPES)])
        assert not outcome.is_failure, (seed, outcome)


def nested_functions(depth: int) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    functions = [helper.make_function("my", "F0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)]
    for level in range(1, depth):
        calls = [helper.make_node(f"F{level - 1}", list(a), list(b), domain="my") for a, b in ("at", "tb")]
        functions.append(helper.make_function("my", f"F{level}", ["a"], ["b"], calls, imports))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain="my", name="top")],
        "g",
        [value("x", TensorProto.FLOAT, [1, 8])],
        [value("y", TensorProto.FLOAT, [1, 8])],
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


@pytest.mark.parametrize("depth", [18, 60])
def test_functions_that_expand_to_too_many_nodes_are_refused_before_they_are_expanded(depth: int) -> None:
    with pytest.raises(ModelError, match="functions"):
        quantized(nested_functions(depth))


def test_nested_functions_of_a_usual_size_are_quantized() -> None:
    assert quantized(nested_functions(4))


def test_function_that_calls_itself_names_the_node() -> None:
    model = nested_functions(2)
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "F1", "my"
    with pytest.raises(ModelError, match=r"must not call itself.*node"):
        quantized(model)


def damaged(kind: str) -> onnx.ModelProto:
    model = linear()
    graph = model.graph
    if kind == "length":
        graph.initializer[0].raw_data = bytes(100)
    elif kind == "negative":
        graph.initializer[0].dims[0] = -8
    elif kind == "type":
        graph.initializer[0].data_type = 99
    elif kind == "attribute":
        graph.node[0].attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.INT, f=1.0))
    elif kind == "reference":
        graph.node[0].attribute.append(
            onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="a")
        )
    elif kind == "outputs":
        del graph.output[:]
    elif kind == "rank":
        graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(32, np.float32), "w"))
    elif kind == "arity":
        del graph.node[0].input[1]
    return model


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("length", "tensor 'w'"),
        ("negative", "tensor 'w'"),
        ("type", "tensor 'w'"),
        ("attribute", "node 'fc'"),
        ("reference", "node 'fc'"),
        ("outputs", "graph 'g'"),
        ("rank", "fc"),
        ("arity", "fc"),
    ],
)
@pytest.mark.parametrize("recipe", ["S8S8_AAWS", "MATMUL_NBITS"])
def test_error_of_an_invalid_model_names_the_place(kind: str, where: str, recipe: str) -> None:
    with pytest.raises(ModelError, match=where):
        quantized(damaged(kind), recipe)


def test_name_that_is_not_text_is_refused() -> None:
    content = linear().SerializeToString().replace(b"fc", b"\xff\xfe")
    with pytest.raises(ModelError, match="UTF-8"):
        quantry.quantize(content, None, "S8S8_AAWS", store=None)


def test_claimed_size_is_bounded_before_memory_is_allocated() -> None:
    model = linear()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    with pytest.raises(ModelError, match=r"random data.*input 'x'"):
        quantized(model)


def test_written_model_that_onnxruntime_refuses_is_not_a_success() -> None:
    import onnx_ir as ir

    with pytest.raises(InternalError, match="onnxruntime loads"):
        check_written(damaged("rank").SerializeToString(), lambda: ir.serde.deserialize_model(linear()))


def test_refused_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = quantry.quantize(linear(), [np.ones((1, 8), np.float32)], "S8S8_AAWS", store=None)
    monkeypatch.setitem(result.stages.quantized.value.__dict__, "parts", None)
    next(iter(result.model.graph)).op_type = "Nope"
    with pytest.raises(InternalError, match="Nope"):
        result.save(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def endless() -> Iterator[dict[str, np.ndarray]]:
    for number in itertools.count():
        yield {"x": np.full((1, 8), number % 7, np.float32)}


def test_endless_reader_stops_at_the_limit() -> None:
    with pytest.warns(UserWarning, match=f"did not end after {STREAM_LIMIT} samples"):
        result = quantry.quantize(linear(), endless(), "S8S8_AAWS", store=None)
    assert result.evaluation_data.size == STREAM_LIMIT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 5000, "nested too deep"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: &a [1, 2]\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [{','.join(['*b'] * 9)}]\n" for i in range(1)), ""),
        ("a: &a [*a]", "alias"),
    ],
)
def test_text_that_yaml_cannot_hold_is_refused(text: str, reason: str) -> None:
    if not reason:
        assert yaml_value(text, "a recipe")["a"] == [1, 2]
        return
    with pytest.raises(RecipeError, match=reason):
        yaml_value(text, "a recipe")


def test_aliases_that_stand_for_billions_of_values_are_refused() -> None:
    lines = ["x0: &x0 [1, 1]", *(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 10))]
    with pytest.raises(RecipeError, match="aliases"):
        yaml_value("\n".join(lines), "a recipe")


def test_floats_are_read_as_python_writes_them() -> None:
    assert yaml_value("a: 2e-07\nb: 1e5\nc: x2e-07\nd: 12", "a recipe") == {
        "a": 2e-07,
        "b": 1e5,
        "c": "x2e-07",
        "d": 12,
    }


def test_reference_that_is_not_text_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]>
        g (float[1,4] x) => (float[1,4] y) { y = my.F <slope = 0.2> (x) }
        <opset_import: ["": 17], domain: "my"> F <slope> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }"""
    content = onnx.parser.parse_model(text).SerializeToString()
    at = content.rindex(b"slope", 0, content.rindex(b"slope"))
    spoiled = content[:at] + b"sl\xd3pe" + content[at + 5 :]
    with pytest.raises(ModelError, match="UTF-8"):
        quantry.quantize(spoiled, None, "S8S8_AAWS", store=None)


TABLE = """<ir_version: 8, opset_import: ["": 17]> g (int64[1,4] ids, float[1,4,8] x) => (float[1,4,8] y)
    { e = Gather(table, ids) a = Add(e, x) b = MatMul(a, w) r = Relu(b) y = MatMul(r, w) }"""


@pytest.mark.parametrize("recipe", ["S8S8_AAWS", "XINT8", "RECOMMENDED-LLM-EMBEDDINGS", "RECOMMENDED-NPU-MIXED"])
def test_values_that_no_result_depends_on_need_not_be_finite(recipe: str) -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(16, 8)).astype(np.float32)
    table[7] = np.nan  # the row of a token that never occurs
    model = onnx.parser.parse_model(TABLE)
    w = random.normal(size=(8, 8)).astype(np.float32)
    model.graph.initializer.extend([numpy_helper.from_array(table, "table"), numpy_helper.from_array(w, "w")])
    data = [
        {"ids": random.integers(0, 7, (1, 4)), "x": random.normal(size=(1, 4, 8)).astype(np.float32)} for _ in range(4)
    ]
    result = quantry.quantize(model, data, recipe, store=None)
    assert any("constant table has 8 NaN and 0 infinite" in str(note) for note in result.notes)
    runs = [
        ort.InferenceSession(content).run(None, data[0])[0]
        for content in (model.SerializeToString(), result.to_bytes())
    ]
    np.testing.assert_allclose(runs[1], runs[0], atol=0.3 * np.abs(runs[0]).max())
