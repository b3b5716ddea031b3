from pathlib import Path

import convert_models as models
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from convert_models import cases
from typer.testing import CliRunner

from quantry.cli.app import app
from quantry.convert import QdqDialect, translate
from quantry.errors import ModelError, RecipeError
from quantry.graph.save import serialize
from quantry.recipe import (
    DataType,
    EmitOptions,
    FixNeuron,
    Format,
    OwnBias,
    PerBlock,
    PlanOptions,
    Qdq,
    Recipe,
    TensorSpec,
    VitisDialect,
    VitisQdq,
)
from quantry.runtime.sessions import deployment_session, run_session, simulation_session

SOURCES = [Qdq(), *map(VitisQdq, VitisDialect), FixNeuron()]
FORMAT_OF = {
    QdqDialect.QDQ: Qdq(),
    QdqDialect.VAI: VitisQdq(VitisDialect.VAI),
    QdqDialect.VITIS: VitisQdq(VitisDialect.VITIS),
    QdqDialect.QUARK: VitisQdq(VitisDialect.QUARK),
    QdqDialect.CONTRIB: VitisQdq(VitisDialect.CONTRIB),
}
VENDORS = {"com.vai.quantize", "com.amd.quark", "ai.onnx.contrib"}
S16S8 = cases.types(DataType.INT16, DataType.INT8, symmetric=True)
BFP16 = TensorSpec(DataType.BFP16, granularity=PerBlock())
BLOCKS = Recipe(plan=PlanOptions(BFP16, BFP16, OwnBias(BFP16)), emit=EmitOptions(VitisQdq(VitisDialect.QUARK)))


def operators(model: ir.Model) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for node in model.graph:
        counts[node.domain, node.op_type] = counts.get((node.domain, node.op_type), 0) + 1
    return counts


def assert_same(expected: ir.Model, actual: ir.Model) -> None:
    onnx.checker.check_model(onnx.load_from_string(serialize(actual)), full_check=True)
    wanted, found = models.outputs(expected), models.outputs(actual)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("target", QdqDialect)
@pytest.mark.parametrize("format_", SOURCES, ids=str)
def test_translation_keeps_the_outputs(format_: Format, target: QdqDialect) -> None:
    original = models.source(cases.XINT8, format_)
    assert_same(original, translate(original, target))


@pytest.mark.parametrize("target", FORMAT_OF)
@pytest.mark.parametrize("format_", SOURCES[:-1], ids=str)
def test_translation_writes_the_operators_that_the_format_writes(format_: Format, target: QdqDialect) -> None:
    translated = translate(models.source(cases.XINT8, format_), target)
    assert operators(translated) == operators(models.source(cases.XINT8, FORMAT_OF[target]))
    assert set(translated.functions) == set(models.source(cases.XINT8, FORMAT_OF[target]).functions)


@pytest.mark.parametrize("format_", SOURCES, ids=str)
def test_standard_leaves_no_vendor_after(format_: Format) -> None:
    translated = translate(models.source(cases.XINT8, format_), QdqDialect.STANDARD)
    assert not VENDORS & {*translated.opset_imports, *(node.domain for node in translated.graph)}
    assert not translated.functions


def test_model_without_functions_is_understood_by_its_operators_names() -> None:
    original = models.source(cases.XINT8, VitisQdq(VitisDialect.VAI)).clone()
    original.functions.clear()
    assert_same(models.source(cases.XINT8, Qdq()), translate(original, QdqDialect.QDQ))


def test_positions_are_written_where_the_dialect_has_them_and_nowhere_else() -> None:
    vai = translate(models.source(cases.XINT8, Qdq()), QdqDialect.VAI)
    assert all({"bit_width", "pos"} <= set(node.attributes) for node in vai.graph if node.domain)
    back = translate(vai, QdqDialect.QDQ)
    assert not any({"bit_width", "pos"} & set(node.attributes) for node in back.graph)


@pytest.mark.parametrize("target", [QdqDialect.VAI, QdqDialect.QUARK, QdqDialect.STANDARD])
def test_sixteen_bit_model_keeps_its_early_opset(target: QdqDialect) -> None:
    original = models.source(S16S8, VitisQdq(VitisDialect.CONTRIB), opset=13)
    translated = translate(original, target)
    assert translated.opset_imports[""] == 13
    assert_same(original, translated)


def test_block_format_is_written_out_as_standard_operators() -> None:
    original = models.source(BLOCKS, VitisQdq(VitisDialect.QUARK))
    assert_same(original, translate(original, QdqDialect.STANDARD))


@pytest.mark.parametrize(
    ("recipe", "format_", "opset", "target", "message"),
    [
        (S16S8, VitisQdq(VitisDialect.CONTRIB), 13, QdqDialect.QDQ, "from opset 21 on.*'contrib'"),
        (BLOCKS, VitisQdq(VitisDialect.QUARK), 17, QdqDialect.VAI, "BFPQuantizeDequantize.*translate to 'standard'"),
    ],
)
def test_what_a_dialect_cannot_say_raises(
    recipe: Recipe, format_: Format, opset: int, target: QdqDialect, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        translate(models.source(recipe, format_, opset), target)


def test_blocks_stay_as_they_are_in_their_own_dialect() -> None:
    original = models.source(BLOCKS, VitisQdq(VitisDialect.QUARK))
    assert_same(original, translate(original, QdqDialect.QUARK))


@pytest.mark.parametrize(
    ("operator", "told"), [("DynamicQuantizeLinear", "at run time"), ("Relu", "got none among 1 nodes")]
)
def test_model_without_pairs_raises_with_what_it_has(operator: str, told: str) -> None:
    data = ir.val("x")
    only = ir.node(operator, [data], name="only")
    model = ir.Model(ir.Graph([data], only.outputs, nodes=[only], opset_imports={"": 17}), ir_version=8)
    with pytest.raises(ModelError, match=told):
        translate(model, QdqDialect.QDQ)


def test_vendor_operator_without_its_function_cannot_be_written_out() -> None:
    original = models.source(cases.XINT8, VitisQdq(VitisDialect.VAI)).clone()
    original.functions.clear()
    with pytest.raises(ModelError, match="must have its function"):
        translate(original, QdqDialect.STANDARD)


def test_original_is_left_as_it_was() -> None:
    original = models.source(cases.XINT8, FixNeuron())
    before = serialize(original)
    translate(original, QdqDialect.QDQ)
    assert serialize(original) == before


def test_command_writes_the_translated_model(tmp_path: Path) -> None:
    source, result = tmp_path / "in.onnx", tmp_path / "out.onnx"
    source.write_bytes(serialize(models.source(cases.XINT8, VitisQdq(VitisDialect.VAI))))
    done = CliRunner().invoke(app, ["convert", str(source), "-o", str(result), "--to", "qdq"])
    assert done.exit_code == 0, done.output
    assert not onnx.load(result).functions


def test_command_refuses_an_unknown_target_with_the_nearest(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["convert", "in.onnx", "-o", str(tmp_path / "out.onnx"), "--to", "quarks"])
    assert isinstance(done.exception, RecipeError)
    assert "did you mean 'quark'" in str(done.exception)


_PAIRS = [target for target in QdqDialect if target not in (QdqDialect.STANDARD, QdqDialect.ORT_CPU)]
_HEAD = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]> g (float[1,4] x) => (float[1,4] y)'
LEFT_OUT = "<float s = {0.5}> { q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) y = Relu(d) }"
CONSTANTS = """{
    s = Constant<value = float {0.5}>()
    z = Constant<value = uint8 {0}>()
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    y = Relu(d)
}"""
POSITION = '{ d = ai.onnx.contrib.FixNeuron<bit_width = "8", pos = "1">(x) y = Relu(d) }'


@pytest.mark.parametrize("target", _PAIRS)
@pytest.mark.parametrize("body", [LEFT_OUT, CONSTANTS, POSITION], ids=["omitted", "constants", "position"])
def test_parameters_of_any_form_are_taken_on(body: str, target: QdqDialect) -> None:
    source = ir.from_proto(onnx.parser.parse_model(f"{_HEAD} {body}"))
    session = simulation_session(serialize(translate(source, target)), threads=1)
    found = run_session(session, {"x": np.array([[-1.0, 0.3, 1.7, 60.0]], np.float32)})["y"]
    np.testing.assert_array_equal(found, [[0.0, 0.5, 1.5, 60.0]])


@pytest.mark.parametrize(
    ("attributes", "message"), [("", "or its position"), ('<bit_width = "7", pos = "1">', "4, 8 or 16 bits, got 7")]
)
def test_fix_neuron_that_says_too_little_raises(attributes: str, message: str) -> None:
    body = f"{{ y = ai.onnx.contrib.FixNeuron{attributes}(x) }}"
    with pytest.raises(ModelError, match=message):
        translate(ir.from_proto(onnx.parser.parse_model(f"{_HEAD} {body}")), QdqDialect.QDQ)


NPU_SOURCES = [Qdq(), *map(VitisQdq, VitisDialect), FixNeuron()]


@pytest.mark.parametrize("format_", NPU_SOURCES, ids=repr)
def test_ort_cpu_runs_integer_kernels_with_the_same_bits_in_a_plain_session(format_: Format) -> None:
    source = models.source(cases.XINT8, format_)
    translated = translate(source, QdqDialect.ORT_CPU)
    assert ("", "QLinearConv") in operators(translated)
    # All optimizations of onnxruntime, as a user would open it.
    got = run_session(deployment_session(serialize(translated), threads=1), cases.samples()[0])
    for name, expected in models.outputs(source).items():
        np.testing.assert_array_equal(got[name], expected)


def test_ort_cpu_needs_power_of_two_scales() -> None:
    with pytest.raises(ModelError, match="power-of-two scales"):
        translate(models.source(Recipe(), Qdq()), QdqDialect.ORT_CPU)
