import numpy as np
import onnx
import onnx_ir as ir

from onnx_oracle import from_text, graph_from_text, random_feeds, run
from quantry.graph.load import model_source
from quantry.graph.passes.float16 import float16_to_float32
from quantry.graph.save import serialize
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions

TEXT = """<ir_version: 8, opset_import: ["": 17, "acme": 1]>
g (HALF[2, 4] x, int64[2, 4] i) => (HALF[2, 4] y) <HALF[2, 4] a> {
  k = Constant<value = HALF[4] {FOUR}>()
  f = Cast<to = CODE>(i)
  a = MatMul(x, w)
  b = Add(a, k)
  c = Add(b, f)
  d = acme.Shift(c)
  e = Cast<to = 9>(d)
  t = ReduceMax(i)
  u = Cast<to = 9>(t)
  v = Squeeze(u)
  y = If(v)<then_branch = p () => (HALF[2, 4] q) { o = Constant<value = HALF {A}>() q = Mul(d, o) },
            else_branch = r () => (HALF[2, 4] s) { s = Neg(d) }>
}
<domain: "acme", opset_import: ["": 17]> Shift (m) => (n) { z = Constant<value = HALF {B}>() n = Add(m, z) }"""


def _text(half: bool) -> str:
    # The text form writes float16 numbers as their bits.
    numbers = {"FOUR": ([1, 2, 3, 4]), "{A}": [0.5], "{B}": [0.25]}
    text = TEXT.replace("HALF", "float16" if half else "float").replace("CODE", "10" if half else "1")
    for name, values in numbers.items():
        bits = np.array(values, np.float16).view(np.uint16) if half else np.array(values, np.float32)
        written = ", ".join(str(value) for value in bits)
        text = text.replace(name, f"{{{written}}}" if name.startswith("{") else written)
    return text


WEIGHT = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float16)


def test_every_part_of_a_float16_model_becomes_float32():
    model = graph_from_text(_text(half=True), w=WEIGHT)
    (note,) = float16_to_float32(model)
    assert str(note) == "converted the model with 1 float16 weights to float32; x, y are now float32"
    expected = from_text(_text(half=False), w=WEIGHT.astype(np.float32))
    onnx.checker.check_model(onnx.load_from_string(serialize(model)), full_check=True)
    feeds = random_feeds(expected)
    np.testing.assert_array_equal(run(model, feeds)["y"], run(expected, feeds)["y"])


def test_result_is_near_the_float16_model():
    proto = from_text(_text(half=True), w=WEIGHT)
    prepared = prepare(model_source(proto), PrepareOptions(float16_to_float32=True))
    feeds = random_feeds(proto)
    exact = run(prepared.model, {**feeds, "x": feeds["x"].astype(np.float32)})["y"]
    np.testing.assert_allclose(exact, run(proto, feeds)["y"].astype(np.float32), rtol=5e-3, atol=5e-3)


def test_float32_model_is_left_alone():
    model = graph_from_text(_text(half=False), w=WEIGHT.astype(np.float32))
    before = serialize(model)
    assert float16_to_float32(model) == ()
    assert serialize(model) == before


def test_large_weight_is_widened_when_it_is_read():
    weight = np.random.default_rng(1).standard_normal((1024, 1024)).astype(np.float16)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float16[1, 1024] x) => (float16[1, 1024] y) { y = MatMul(x, w) }'
    model = graph_from_text(text, w=weight)
    float16_to_float32(model)
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    assert tensor.nbytes == weight.size * 4
    np.testing.assert_array_equal(tensor.numpy(), weight.astype(np.float32))
