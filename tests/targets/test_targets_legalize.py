"""Recipes adapted to a target, and models that keep its rules."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from target_models import network, samples
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.errors import ModelError, RecipeError
from quantry.recipe import PRESETS, Dimension, to_yaml
from quantry.targets import TARGETS, Target, check_model, find_target


def quantized(target: str, recipe: str | None = None) -> onnx.ModelProto:
    plain = PRESETS[recipe or find_target(target).recommended[0]].recipe
    result = quantry.quantize(network(), samples(), plain, target=target, store=None)
    return onnx.load_from_string(result.to_bytes())


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_model_of_the_recommended_recipe_keeps_every_rule(target: Target) -> None:
    assert check_model(quantized(target.name, target.recommended[0]), target) == ()


@pytest.mark.parametrize("preset", ["A8W8", "S8S8_AAWS", "U16S8_AAWS", "CPU_INT8", "INT16_CNN_DEFAULT"])
def test_accepted_preset_keeps_every_rule_of_htp(preset: str) -> None:
    assert check_model(quantized("qnn-htp", preset), "qnn-htp") == ()


def test_batch_is_fixed_and_attributes_are_written_out_for_vitisai() -> None:
    model = quantized("vitisai", "XINT8")
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_value == 1
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 2
    for node in convolutions:
        written = {attribute.name for attribute in node.attribute}
        assert written == {"kernel_shape", "strides", "pads", "dilations", "group"}
    assert {entry.key: entry.value for entry in model.metadata_props}["quantry.target"] == "vitisai"


def test_same_preset_without_a_target_breaks_the_rules_of_the_compiler() -> None:
    result = quantry.quantize(network(), samples(), "XINT8", store=None)
    found = check_model(result.to_bytes(), "vitisai")
    assert {violation.rule for violation in found} == {"static shapes", "written attributes"}
    assert all(violation.source and violation.consequence for violation in found)


def test_recipe_that_does_not_suit_is_explained_before_any_work() -> None:
    with pytest.raises(RecipeError, match=r"must suit the target qnn-htp, got 'A16W8': .* int16, .* RECOMMENDED-HTP"):
        quantry.quantize(network(), None, "A16W8", target="qnn-htp", store=None)


def test_batch_of_the_recipe_wins() -> None:
    recipe = PRESETS["CPU_INT8"].recipe
    recipe = replace(recipe, target="stm32n6", prepare=replace(recipe.prepare, batch=2))
    pair = [{"x": np.repeat(samples(1)[0]["x"], 2, axis=0)}]
    model = onnx.load_from_string(quantry.quantize(network(), pair, recipe, store=None).to_bytes())
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


def test_other_dynamic_axis_gets_the_size_of_the_samples_or_is_an_error() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,2,height,4] x) => (float[n,2,height,4] y) { y = Relu (x) }"""
    data = [np.ones((1, 2, 6, 4), np.float32)]
    for chosen in ("CPU_INT8", "auto"):
        result = quantry.quantize(parser.parse_model(text), data, chosen, target="stm32n6", store=None)
        assert result.model.graph.inputs[0].shape == (1, 2, 6, 4)
    several = [*data, np.ones((1, 2, 8, 4), np.float32)]
    with pytest.raises(ModelError, match="must have static shapes"):
        quantry.quantize(parser.parse_model(text), several, target="stm32n6", store=None, effort="low")
    with pytest.raises(ModelError, match=r"must have static shapes, got input 'x' .*height.* --dimension NAME=SIZE"):
        quantry.quantize(parser.parse_model(text), several, "CPU_INT8", target="stm32n6", store=None)
    recipe = PRESETS["CPU_INT8"].recipe
    sized = replace(recipe, prepare=replace(recipe.prepare, dimensions=(Dimension("height", 6),)))
    result = quantry.quantize(parser.parse_model(text), data, sized, target="stm32n6", store=None)
    assert result.model.graph.inputs[0].shape == (1, 2, 6, 4)
    wrong = replace(recipe, prepare=replace(recipe.prepare, dimensions=(Dimension("heigth", 6),)))
    with pytest.raises(ModelError, match="did you mean 'height'"):
        quantry.quantize(parser.parse_model(text), data, wrong, store=None)


def test_padding_of_the_input_is_quantized_for_htp() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,4,4,4] y)
        <int64[8] pads = {0,0,0,0,0,0,1,1}>
        { p = Pad(x, pads) y = Conv<kernel_shape = [3, 3], strides = [2, 2]>(p, w) }"""
    )
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    data = [{"x": generator.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(2)]
    plain = quantry.quantize(model.SerializeToString(), data, "CPU_INT8", store=None)
    broken = check_model(plain.to_bytes(), "qnn-htp")
    assert "quantized input" in {one.rule for one in broken}
    adapted = quantry.quantize(model.SerializeToString(), data, "CPU_INT8", target="qnn-htp", store=None)
    assert not check_model(adapted.to_bytes(), "qnn-htp")


def test_sixteen_bits_on_htp_fix_scales_and_narrow_the_second_operand() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,4] x, float[1,4,4] z) => (float[1,4,4] y) {
        s = Sigmoid (x)
        t = Tanh (z)
        m = MatMul (s, t)
        y = Softmax <axis = -1> (m)
    }"""
    rng = np.random.default_rng(0)
    data = [{name: rng.normal(size=(1, 4, 4)).astype(np.float32) for name in "xz"} for _ in range(3)]
    result = quantry.quantize(parser.parse_model(text), data, "RECOMMENDED-HTP-16", target="qnn-htp", store=None)
    params = result.params.tensors
    assert (float(params["s"].scale), int(params["s"].zero_point)) == (2.0**-16, 0)
    assert (float(params["t"].scale), int(params["t"].zero_point)) == (2.0**-15, 32768)
    assert float(params["y"].scale) == 2.0**-16
    assert check_model(result.to_bytes(), "qnn-htp") == ()
    (second,) = result.plan.conversions.values()
    assert (second.tensor, second.spec.dtype.value) == ("t", "uint8")


@pytest.mark.parametrize(("target", "preset"), [("vitisai", "RECOMMENDED-NPU"), ("tensorrt", "RECOMMENDED-TENSORRT")])
def test_sums_of_a_transformer_are_quantized_where_the_target_wants_it(target: str, preset: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8] x) => (float[1,4,8] y) {
        m = MatMul (x, w)
        r = Add (m, x)
        n = LayerNormalization <axis = -1> (r, g, b)
        h = MatMul (n, w)
        y = Add (h, r)
    }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, array in {"w": rng.normal(size=(8, 8)), "g": np.ones(8), "b": np.zeros(8)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    data = [rng.normal(size=(1, 4, 8)).astype(np.float32) for _ in range(3)]
    result = quantry.quantize(model, data, preset, target=target, store=None)
    assert check_model(result.to_bytes(), target) == ()


def test_attention_masks_may_stay_float_for_vitisai() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8] x, float[1,1,4] mask) => (float[1,4,8] y)
    <float low = {-10000}> {
        q = MatMul (x, w)
        k = Transpose <perm = [0, 2, 1]> (x)
        scores = MatMul (q, k)
        hidden = Mul (mask, low)
        sum = Add (scores, hidden)
        p = Softmax <axis = -1> (sum)
        y = MatMul (p, x)
    }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    mask = np.array([[[0, 0, 0, 1]]], np.float32)
    data = [{"x": rng.normal(size=(1, 4, 8)).astype(np.float32), "mask": mask} for _ in range(3)]
    result = quantry.quantize(model, data, "XINT8", target="vitisai", store=None)
    assert any("mask" in declined.reason for declined in result.declined)
    assert check_model(result.to_bytes(), "vitisai") == ()


YAML = """
name: my-npu
summary: an accelerator of our own
recommended: [A8W8]
rules:
  - {kind: StaticShapes, source: our manual, consequence: it refuses the model}
  - {kind: Types, activation: [int8], weight: [int8], bias: [int32], source: our manual, consequence: it refuses them}
  - {kind: Granularity, source: our manual, consequence: it takes the first scale}
"""


def test_target_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(YAML)
    target = find_target(str(file))
    assert "A8W8" in target.presets
    assert "CPU_INT8" not in target.presets
    result = quantry.quantize(network(), samples(), target.recommended[0], target=str(file), store=None)
    assert result.recipe.plan.activation == PRESETS["A8W8"].recipe.plan.activation
    assert result.recipe.target == str(file)
    assert check_model(result.to_bytes(), target) == ()


def test_target_from_python_may_have_a_rule_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("""
from dataclasses import dataclass
from quantry.targets import TargetRule, Target

@dataclass(frozen=True, kw_only=True)
class NoSigmoid(TargetRule):
    name = "no sigmoid"

    @property
    def text(self):
        return "no Sigmoid"

    def violations(self, model):
        for node in model.operators:
            if node.op_type == "Sigmoid":
                yield self.broken(node.name, "a Sigmoid", "use HardSigmoid")

TARGET = Target("mine", "no Sigmoid", ("CPU_INT8",), (NoSigmoid(source="manual", consequence="it hangs"),))
""")
    (violation,) = check_model(quantized("ort-cpu", "CPU_INT8"), find_target(str(file)))
    assert violation.rule == "no sigmoid"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "must have summary"),
        (YAML.replace("StaticShapes", "StaticShape"), "did you mean 'StaticShapes'"),
        (YAML.replace("recommended: [A8W8]", "recommended: [A8W9]"), "must name presets, got 'A8W9'"),
        (YAML + "ruels: []\n", "did you mean 'rules'"),
        ("- a", "must be a mapping"),
    ],
)
def test_broken_target_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=message):
        find_target(str(file))
    with pytest.raises(RecipeError, match="does not exist"):
        find_target(str(tmp_path / "none.yaml"))


def test_command_quantizes_for_a_target_and_lists_targets(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.concatenate([sample["x"] for sample in samples()]))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(to_yaml(replace(PRESETS["CPU_INT8"].recipe, target="qnn-htp")))
    arguments = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "x.npy"), "--store", "none"]
    out = tmp_path / "out.onnx"
    done = CliRunner().invoke(app, [*arguments, "--recipe", str(recipe), "-o", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, ["check", str(out), "--target", "qnn-htp"]).exit_code == 0
    listed = CliRunner().invoke(app, ["targets"]).output
    assert all(name in listed for name in TARGETS)
    shown = CliRunner().invoke(app, ["targets", "qnn-htp"]).output
    assert "static shapes" in shown
    assert "U16S8_AAWS" in shown
