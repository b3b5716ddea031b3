"""Rotation of residual streams: the same outputs in onnxruntime, no outliers, and reasons where it is impossible."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import quantry
from quantry.equalize import rotate
from quantry.equalize.flat_basis import rotation
from quantry.errors import RecipeError
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.memo import fingerprint
from quantry.prepare import prepare
from quantry.recipe import PRESETS, EqualizeOptions, PrepareOptions, Rotation, from_plain

# Letter and lengths of a constant are its name: w12_24 is a matrix of 12 x 24. x is [2,5,6].
START = "a = MatMul(x, w6_12) s = Add(a, p1_5_12) "
FEED = "h = MatMul(n, w12_24) hb = Add(h, b24) r = Relu(hb) f = MatMul(r, w24_12) fb = Add(f, b12) "
PRE = START + "n = LayerNormalization(s, g12, c12) " + FEED + "t = Add(s, fb) m = LayerNormalization(t, k12, d12) "
POST = START + "q = Add(s, w12) n = LayerNormalization(q, g12, c12) " + FEED + "t = Add(n, fb) "
POST += "m = LayerNormalization(t, k12, d12) "
HEAD = "z = MatMul(m, v12_4) y = Add(z, b4)"
LAWFUL = {
    "normalized before layers": (PRE + HEAD, 0),
    # The first stream has no sum of computed tensors, so it stays; the sum after it is in another basis.
    "normalized after sums": (POST + HEAD, 1),
    "output of a normalization": (PRE + "y = Identity(m)", 1),
    "output of the stream": (PRE + HEAD + " u = Add(t, b12) v = LayerNormalization(u, l12) y2 = Identity(u)", 1),
    "no bias to take beta": (PRE + "y = MatMul(m, v12_4)", 0),
    "unknown reader of a normalization": (PRE + "e = Sigmoid(m) y = MatMul(e, v12_4)", 1),
    "mean over positions": (PRE + "e = ReduceMean <axes = [1], keepdims = 0> (m) y = Gemm(e, v12_4, b4)", 0),
    "first position": (PRE + "e = Gather <axis = 1> (m, zero) y = Gemm <transB = 1> (e, v4_12, b4)", 0),
    "two normalizations of one sum": (PRE + "o = LayerNormalization(t, l12) i = Add(m, o) y = MatMul(i, v12_4)", 2),
    "scaled stream": (START + "i = Mul(s, half) n = LayerNormalization(i, g12, c12) " + FEED + "t = Add(i, fb) "
                      "m = LayerNormalization(t, k12, d12) " + HEAD, 0),
    "stream read without normalization": (PRE + HEAD + " y2 = MatMul(t, v12_3)", 0),
    "factors after a layer": (PRE.replace("t = Add(s, fb)", "i = Mul(fb, l12) t = Add(s, i)") + HEAD, 0),
    "number added to all channels": (PRE.replace("Add(s, fb)", "Add(i, fb) ").replace("t =", "i = Sub(s, half) t =")
                                     + HEAD, 0),
}  # fmt: skip
IMAGE = (
    "e = Conv <strides = [2, 2]> (x, w12_3_2_2, b12) f0 = Reshape(e, flat) a = Transpose <perm = [0, 2, 1]> (f0) "
    "o = Expand(t1_1_12, first) j = Concat <axis = 1> (o, a) s = Add(j, p1_5_12) "
    "n = LayerNormalization(s, g12, c12) " + FEED + "t = Add(s, fb) m = LayerNormalization(t, k12, d12) " + HEAD
)
WORDS = (
    "e = Gather(w9_12, x) a = Gather(p5_12, places) s = Add(e, a) n = LayerNormalization(s, g12, c12) "
    + FEED + "t = Add(s, fb) m = LayerNormalization(t, k12, d12) " + HEAD + " u = Mul(e, half)"
)  # fmt: skip
SKIP = (
    START + "n, _1, _2, t0 = com.microsoft.SkipLayerNormalization(s, a, g12, c12, e12) " + FEED + "m = "
    "com.microsoft.SkipLayerNormalization(t0, fb, k12, d12) " + HEAD
)
UNLAWFUL = {
    "function": (PRE + HEAD + " y2 = Sigmoid(t)", "Sigmoid reads or writes it"),
    "product": (PRE.replace("Add(s, fb)", "Mul(s, fb)") + HEAD, "Mul reads or writes it"),
    "written by a function": (PRE.replace("f = MatMul(r, w24_12) fb = Add(f, b12)", "f = MatMul(r, w24_12) "
                              "fb = Tanh(f)") + HEAD, "Tanh reads or writes it"),
    "input": ("t = Add(x, x2) m = LayerNormalization(t, g6) y = MatMul(m, v6_4)", "an input of the model"),
    "no sum": (START + "m = LayerNormalization(s, g12, c12) " + HEAD, "it has no residual sum"),
    "shared weight": (PRE + HEAD + " i = MatMul(r, v24_24) i2 = MatMul(i, w24_12) y2 = Relu(i2)", "shared"),
    "several axes": (PRE.replace("t, k12, d12", "t, k5_12, d5_12").replace("LayerNormalization(t",
                     "LayerNormalization <axis = 1> (t") + HEAD, "runs over more than the channels"),
    "heads": (PRE + HEAD + " i = Reshape(t, heads) y2 = Relu(i)", "Reshape mixes or moves its channels"),
}  # fmt: skip
# As many positions as channels, so that lengths do not tell the axes apart; x is [2,12,6].
SQUARE = "a = MatMul(x, w6_12) s = Add(a, p1_12_12) "
SQUARES = {
    "a normalization that is added transposed": SQUARE + "n = LayerNormalization(s, g12, c12) "
    "f = MatMul(n, w12_12) i = Transpose <perm = [0,2,1]> (n) t = Add(i, f) m = LayerNormalization(t, k12, d12) ",
    "a factor that adds an axis": SQUARE + "i = Mul(s, f1_1_1_1) j = Transpose <perm = [0,1,3,2]> (i) "
    "b = MatMul(x, v6_12) t = Add(j, b) m = LayerNormalization(t, k12, d12) ",
    "an axis that a factor adds is removed": SQUARE + "i = Mul(s, f1_1_1_1) j = Squeeze(i, front) "
    "n = LayerNormalization(j, g12, c12) f = MatMul(n, w12_12) t = Add(s, f) m = LayerNormalization(t, k12, d12) ",
}
SETTINGS = {
    "front": np.array([0]),
    "zero": np.array(0),
    "half": np.array(0.5, np.float32),
    "flat": np.array([2, 12, 4]),
    "first": np.array([2, 1, 12]),
    "places": np.arange(5),
    "heads": np.array([2, 5, 3, 4]),
}


def network(body: str, x: str = "float[2,5,6] x", outliers: float = 1.0) -> onnx.ModelProto:
    outputs = ", ".join(f"float {name}" for name in ("y", "y2") if f"{name} =" in body)
    given = x + (", float[2,5,6] x2" if "x2" in body else "")
    domains = '"": 17, "com.microsoft": 1'
    # No shape inference knows what onnxruntime's own operators return.
    known = "<float[2,5,12] n, float[2,5,12] t0, float[2,5,12] m>" if "microsoft" in body else ""
    proto = onnx.parser.parse_model(
        f"<ir_version: 8, opset_import: [{domains}]> g ({given}) => ({outputs}) {known} {{ {body} }}"
    )
    random = np.random.default_rng(0)
    read = {name for node in proto.graph.node for name in node.input} - {"x", "x2"}
    for name in sorted(read - {name for node in proto.graph.node for name in node.output}):
        array = SETTINGS.get(name)
        if array is None:
            array = random.standard_normal(tuple(map(int, name[1:].split("_")))).astype(np.float32)
            if array.shape[-1] == 12:
                array[..., 7] *= outliers
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def prepared(proto: onnx.ModelProto) -> FloatModel:
    return prepare(model_source(proto), PrepareOptions())


def run(content: bytes, feeds: dict[str, np.ndarray] | None = None, more: tuple[str, ...] = ()) -> list[np.ndarray]:
    if more:
        proto = onnx.load_from_string(content)
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in more)
        content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    shapes = {one.name: one.shape for one in session.get_inputs()}
    feeds = feeds or {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found: list[np.ndarray] = session.run(None, feeds)
    return found


def same_outputs(before: FloatModel, after: FloatModel, feeds: dict[str, np.ndarray] | None = None) -> None:
    pairs = zip(run(serialize(before.model), feeds), run(serialize(after.model), feeds), strict=True)
    for expected, found in pairs:
        assert np.allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def products(model: FloatModel) -> int:
    return sum(node.op_type == "MatMul" for node in model.model.graph)


@pytest.mark.parametrize("case", LAWFUL)
def test_outputs_stay(case: str) -> None:
    body, inserted = LAWFUL[case]
    before = prepared(network(body))
    after = rotate(before, Rotation())
    assert str(after.notes[0]).startswith("rotated 1 residual streams"), after.notes
    assert products(after) - products(before) == inserted
    assert [one.name for one in after.model.graph.outputs] == [one.name for one in before.model.graph.outputs]
    assert fingerprint(after) != fingerprint(before)
    same_outputs(before, after)


@pytest.mark.parametrize("body", SQUARES.values(), ids=SQUARES)
def test_outputs_stay_if_positions_are_as_many_as_channels(body: str) -> None:
    before = prepared(network(body + HEAD, "float[2,12,6] x"))
    same_outputs(before, rotate(before, Rotation()))


def test_patches_class_token_and_positions_are_rotated() -> None:
    before = prepared(network(IMAGE, "float[2,3,4,4] x"))
    after = rotate(before, Rotation())
    assert tuple(map(str, after.notes)) == (
        "rotated 1 residual streams with 2 normalizations; 0 matrix products inserted",
    )
    same_outputs(before, after)


def test_tables_of_words_are_rotated() -> None:
    before = prepared(network(WORDS, "int64[2,5] x"))
    after = rotate(before, Rotation())
    assert str(after.notes[0]).startswith("rotated 1 residual")
    same_outputs(before, after, {"x": np.arange(10).reshape(2, 5) % 9})


def test_a_table_that_another_node_reads_is_copied() -> None:
    tied = WORDS.replace("u = Mul(e, half)", "y2 = Gather(w9_12, places)")
    before = prepared(network(tied, "int64[2,5] x"))
    after = rotate(before, Rotation())
    assert str(after.notes[0]).startswith("rotated 1 residual")
    same_outputs(before, after, {"x": np.arange(10).reshape(2, 5) % 9})


def test_factors_after_a_layer_become_part_of_it() -> None:
    after = rotate(prepared(network(LAWFUL["factors after a layer"][0])), Rotation())
    assert not any(node.op_type == "Mul" for node in after.model.graph)


def test_a_body_of_control_flow_reads_what_it_read_before() -> None:
    branch = "() => (float[2,5,12] {0}) {{ {0} = {1}(m) }}"
    body = PRE + HEAD + " top = ReduceMax <keepdims = 0> (x) big = Greater(top, half) y2 = If (big) <then_branch = one "
    body += branch.format("o1", "Relu") + ", else_branch = two " + branch.format("o2", "Neg") + ">"
    before = prepared(network(body))
    after = rotate(before, Rotation())
    assert tuple(map(str, after.notes)) == (
        "rotated 1 residual streams with 2 normalizations; 1 matrix products inserted",
    )
    same_outputs(before, after)


def test_skip_normalizations_are_sums() -> None:
    before = prepared(network(SKIP))
    after = rotate(before, Rotation())
    assert tuple(map(str, after.notes)) == (
        "rotated 1 residual streams with 2 normalizations; 0 matrix products inserted",
    )
    same_outputs(before, after)


@pytest.mark.parametrize("case", UNLAWFUL)
def test_what_cannot_be_followed_stays_with_a_reason(case: str) -> None:
    body, reason = UNLAWFUL[case]
    before = prepared(network(body))
    after = rotate(before, Rotation())
    assert str(after.notes[0]).startswith("rotated 0 residual streams")
    assert any(reason in str(note) for note in after.notes[1:]), after.notes
    assert fingerprint(after) == fingerprint(before)


def test_a_stream_is_rotated_next_to_one_that_cannot_be() -> None:
    body = POST.replace("q = Add(s, w12)", "q = Sigmoid(s)") + HEAD
    before = prepared(network(body))
    after = rotate(before, Rotation())
    assert str(after.notes[0]) == "rotated 1 residual streams with 1 normalizations; 1 matrix products inserted"
    same_outputs(before, after)


def test_offsets_of_the_residual_go_into_the_bias_of_the_layer_next_to_it() -> None:
    chain = POST + FEED.replace("n,", "m,").replace("24", "20").translate(str.maketrans("hrf", "HRF"))
    chain += "T = Add(m, Fb) o = LayerNormalization(T, l12, e12) " + HEAD.replace("m,", "o,")
    before = prepared(network(chain))
    after = rotate(before, Rotation())
    assert str(after.notes[0]).startswith("rotated 2 residual streams with 2 normalizations; 2 matrix products")
    adds = [sum(node.op_type == "Add" for node in model.model.graph) for model in (before, after)]
    assert adds[0] == adds[1]
    same_outputs(before, after)


def test_outliers_are_spread() -> None:
    proto = network(PRE + HEAD, outliers=100.0)
    before = prepared(proto)
    after = rotate(before, Rotation())
    peaks = []
    for model in (before, after):
        stream = run(serialize(model.model), more=("t",))[-1]
        peaks.append(np.abs(stream).max() / np.sqrt((stream**2).mean()))
    assert peaks[1] < 0.7 * peaks[0]


def test_the_same_seed_gives_the_same_bytes() -> None:
    model = prepared(network(POST + HEAD))
    assert serialize(rotate(model, Rotation()).model) == serialize(rotate(model, Rotation()).model)
    assert fingerprint(rotate(model, Rotation(1))) != fingerprint(rotate(model, Rotation()))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12, 20, 39, 96, 130, 312, 384])
def test_rotations_are_orthogonal_and_keep_ones(size: int) -> None:
    matrix = rotation(size, 3)
    assert np.allclose(matrix @ matrix.T, np.eye(size), atol=1e-12)
    assert np.allclose(matrix @ np.ones(size), 1.0, atol=1e-12)


@pytest.mark.parametrize(("size", "peak"), [(384, 1.3), (768, 1.2), (312, 1.3), (1024, 1.2), (390, 1.8)])
def test_rotations_spread_every_channel_evenly(size: int, peak: float) -> None:
    # 1 is perfectly even; the largest of so many random numbers would be above 4.
    assert np.abs(rotation(size, 0)[:, 1:]).max() * np.sqrt(size) < peak


def test_power_of_two_int8_gains_from_rotation() -> None:
    proto = network(PRE + HEAD, outliers=100.0)
    random = np.random.default_rng(2)
    data = [{"x": random.standard_normal((2, 5, 6)).astype(np.float32)} for _ in range(8)]
    plain = replace(PRESETS["XINT8"].recipe, equalize=EqualizeOptions())
    rotated = replace(plain, equalize=EqualizeOptions(rotate=Rotation()))
    before, after = (
        quantry.quantize(proto, data, recipe, store=None).evaluation.metrics["sqnr"].value
        for recipe in (plain, rotated)
    )
    assert after > before + 3.0


def test_options_are_checked() -> None:
    with pytest.raises(RecipeError, match="seed must not be negative"):
        Rotation(-1)
    plain = {"equalize": {"rotate": {"seed": 2}}}
    assert from_plain(plain).equalize.rotate == Rotation(2)
