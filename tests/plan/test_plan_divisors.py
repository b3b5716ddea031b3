"""What computes a divisor stays float with the division, so that no padded or small row becomes 0 / 0."""

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text, run

import quantry

# Each body computes n from h, [4, 32]; the last two rows of h are padding: zeros, or tiny where zero has no norm.
BOUNDED = {
    "normalize": "l = ReduceL2 <axes = [-1]> (h) c = Clip(l, tiny) e = Expand(c, shape) n = Div(h, e)",
    "normalize by hand": """q = Mul(h, h) s = ReduceSum(q, last) r = Sqrt(s) m = Max(r, tiny) n = Div(h, m)""",
    "reciprocal": "l = ReduceL2 <axes = [-1]> (h) a = Add(l, tiny) i = Reciprocal(a) n = Mul(h, i)",
    "response normalization": """l = ReduceL2 <axes = [-1]> (h) m = ReduceMean <axes = [0]> (l) a = Add(m, eps)
        d = Div(l, a) n = Mul(h, d)""",
    "largest": "a = Abs(h) m = ReduceMax <axes = [-1]> (a) c = Clip(m, tiny) n = Div(h, c)",
    "root mean square": """p = Pow(h, two) m = ReduceMean <axes = [-1]> (p) a = Add(m, tiny) s = Pow(a, half)
        n = Div(h, s)""",
    "gate": "e = Neg(h) x1 = Exp(e) d = Add(x1, one) n = Div(h, d)",
    "logit": "s = Sigmoid(h) c = Clip(s, eps) r = Sub(one, c) v = Clip(r, eps) d = Div(c, v) n = Log(d)",
    "rational": "a = Abs(h) d = Add(a, eps) n = Div(h, d)",
}
UNBOUNDED = {
    "no epsilon": "l = ReduceL2 <axes = [-1]> (h) n = Div(h, l)",
    "softmax": "m = ReduceMax <axes = [-1]> (h) c = Sub(h, m) e = Exp(c) s = ReduceSum(e, last) n = Div(e, s)",
    "shares": "a = Abs(h) s = ReduceSum(a, last) n = Div(a, s)",
    "experts": """m = Softmax(h) v, i = TopK <largest = 1> (m, k) s = ReduceSum(v, last) d = Div(v, s)
        e = Expand(d, k32) n = Mul(h, e)""",
}


def normalized(body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[4,16] x) => (float[4,3] y)
        <float eps = {{1e-5}}, float tiny = {{1e-12}}, float one = {{1}}, float two = {{2}}, float half = {{0.5}},
         int64[2] shape = {{4, 32}}, int64[1] last = {{-1}}, int64[1] k = {{1}}, int64[2] k32 = {{4, 32}}>
        {{ h = Gemm(x, w) {body} y = Gemm(n, u) }}"""
    random = np.random.default_rng(0)
    weights = {"w": (16, 32), "u": (32, 3)}
    return from_text(
        text, **{name: random.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    )


def samples(padding: float) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    found = []
    for _ in range(6):
        x = random.standard_normal((4, 16)).astype(np.float32)
        x[2:] *= padding
        found.append({"x": x})
    return found


@pytest.mark.parametrize("preset", ["S8S8_AAWS", "RECOMMENDED-NPU"])
@pytest.mark.parametrize(
    ("body", "padding"),
    [(body, 0.0) for body in BOUNDED.values()] + [(body, 1e-3) for body in UNBOUNDED.values()],
    ids=[*BOUNDED, *UNBOUNDED],
)
def test_padded_rows_survive_a_division(body: str, padding: float, preset: str) -> None:
    proto, data = normalized(body), samples(padding)
    result = quantry.quantize(proto, data, preset, store=None)
    expected = np.stack([run(proto, sample)["y"] for sample in data])
    got = np.stack([run(result.to_bytes(), sample)["y"] for sample in data])
    assert np.isfinite(got).all()
    counted = slice(None) if padding == 0 else slice(2)  # the input's own scale leaves nothing of tiny rows
    error = (expected - got)[:, counted]
    assert 10 * np.log10((expected[:, counted] ** 2).mean() / (error**2).mean()) > 15
