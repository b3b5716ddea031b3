import numpy as np
import onnxruntime
import pytest

from observe_oracle import CPU, exposed, float_model
from quantry.data.open_data import calibration_data
from quantry.errors import ModelError
from quantry.execute.float_pass import SegmentBuffers, float_pass
from quantry.graph import segments as segments_module
from quantry.graph.save import serialize
from quantry.graph.segments import cut_into_segments, tensor_types

BRANCH = "float[1,4,8,8] o"
BODIES = {
    "chain": "a = Conv<pads = [1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads = [1,1,1,1]>(b, w) d = Add(c, x) y = Relu(d)",
    "long skip": "a = Relu(x) b = Neg(x) c = Exp(b) d = Sigmoid(c) e = Add(d, a) y = Mul(e, x)",
    "shapes": "s = Shape(x) a = Relu(x) f = Flatten(a) r = Reshape(f, s) b = Neg(r) y = Add(b, x)",
    "subgraph": f"a = Relu(x) b = Neg(a) y = If (k) <then_branch = t () => ({BRANCH}) {{ o = Add(a, b) }}, "
    f"else_branch = e () => ({BRANCH}) {{ o = Sub(a, w2) }}>",
    "two outputs": "a, b = Split<axis = 1>(x, n) c = Relu(b) d = Concat<axis = 1>(c, a) y = Neg(d)",
    "branch without use": "a = Relu(x) dead = Neg(a) y = Exp(x)",
}
WEIGHTS = {
    "w": np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32) / 6,
    "w2": np.ones((1, 4, 8, 8), np.float32),
    "n": np.array([1, 3]),
    "k": np.zeros((), bool),
}
SAMPLES = [{"x": np.random.default_rng(i).standard_normal((1, 4, 8, 8)).astype(np.float32)} for i in range(3)]


def model_of(name):
    body = BODIES[name]
    used = {weight: array for weight, array in WEIGHTS.items() if f"{weight})" in body or f"{weight}," in body}
    return float_model(f"g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{ {body} }}", **used)


def passes(model, samples=SAMPLES):
    shown = [name for name in exposed(model, samples[:1])[0] if name != "x"]
    segments = cut_into_segments(model.model, shown, {})
    data = calibration_data(samples, model.inputs)
    results = [{} for _ in samples]
    for index, tensors in float_pass(segments, tensor_types(model.model), data, CPU):
        results[index] |= {name: values.copy() for name, values in tensors.items()}
    return len(segments), results


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("segment_bytes", [1, 1500, 10**9])
def test_segments_compute_what_the_whole_model_computes(name, segment_bytes, monkeypatch):
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", segment_bytes)
    model = model_of(name)
    count, results = passes(model)
    assert count == 1 if segment_bytes == 10**9 else count > 1
    for found, expected in zip(results, exposed(model, SAMPLES), strict=True):
        assert found.keys() == expected.keys()
        for tensor in expected:
            np.testing.assert_allclose(found[tensor], expected[tensor], rtol=1e-5, atol=1e-5, err_msg=tensor)


def test_segments_leave_the_model_as_it_was():
    model = model_of("chain")
    before = serialize(model.model)
    cut_into_segments(model.model, ["a", "c", "d"], {})
    assert serialize(model.model) == before


def test_number_of_segments_is_limited():
    body = "".join(f"t{i} = Relu(t{i - 1}) " for i in range(1, 60)).replace("t0", "x")
    model = float_model(f"g (float[1,64,64,64] x) => (float[1,64,64,64] y) {{ {body} y = Neg(t59) }}")
    names = [f"t{i}" for i in range(1, 60)]
    assert 2 < len(cut_into_segments(model.model, names, {})) <= segments_module.MAX_SEGMENTS


def test_cuts_are_made_where_little_crosses(monkeypatch):
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 500_000)
    model = float_model(
        "g (float[1,16,64,64] x) => (float[1,16] y) { a = Relu(x) b = Neg(a) p = GlobalAveragePool(b) q = Expand(p, s) "
        "c = Exp(q) d = Neg(c) y0 = GlobalAveragePool(d) y = Flatten(y0) }",
        s=np.array([1, 16, 64, 64]),
    )
    first, second = cut_into_segments(model.model, ["a", "b", "q", "c"], {})[:2]
    assert first.passed == ("p",)
    assert "p" in second.inputs


def test_dynamic_axes_take_their_lengths_from_the_inputs():
    model = float_model("g (float[n,4,h,8] x) => (float[n,4,h,8] y) { a = Relu(x) y = Neg(a) }")
    (segment,) = cut_into_segments(model.model, ["a", "y"], {"n": 2, "h": 3})
    x = np.ones((2, 4, 3, 8), np.float32)
    buffers = SegmentBuffers([segment], tensor_types(model.model), {"n": 2, "h": 3}, {"x": x})
    session = onnxruntime.InferenceSession(serialize(segment.extracted()), providers=list(CPU))
    outputs = buffers.bound(0, session, 0).run({"x": x}, onnxruntime.RunOptions())
    assert outputs["y"].shape == (2, 4, 3, 8)
    assert outputs is buffers.bound(0, session, 0).run({"x": x}, onnxruntime.RunOptions())


def test_samples_of_changing_shape_are_run():
    model = float_model("g (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Neg(a) }")
    samples = [{"x": np.full((rows, 4), float(rows), np.float32)} for rows in (1, 3, 2, 3)]
    _, results = passes(model, samples)
    assert [result["y"].shape for result in results] == [(1, 4), (3, 4), (2, 4), (3, 4)]
    assert [result["y"].max() for result in results] == [-1, -3, -2, -3]


def test_shapes_that_depend_on_the_values_are_run():
    model = float_model(
        "g (float[1,6] x) => (float[k] y) { m = Relu(x) b = Cast<to = 9>(m) i = NonZero(b) t = Transpose(i) "
        "v = GatherND(x, t) y = Neg(v) }"
    )
    samples = [{"x": np.array([[1, -1, 2, -2, 3, value]], np.float32)} for value in (1.0, -1.0)]
    _, results = passes(model, samples)
    assert [result["y"].shape for result in results] == [(4,), (3,)]


def test_wrong_declared_shape_does_not_stop_the_pass():
    model = model_of("chain")
    types = tensor_types(model.model)
    wrong = {name: segments_module.TensorType(kind.dtype, (1, 2)) for name, kind in types.items()}
    segments = cut_into_segments(model.model, ["a", "y"], {})
    steps = list(float_pass(segments, wrong, calibration_data(SAMPLES, model.inputs), CPU))
    assert steps[1][1]["a"].shape == (1, 4, 8, 8)


def test_model_that_onnxruntime_cannot_load_is_a_model_error():
    model = float_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.model.graph.node(0).domain = "nowhere"
    segments = cut_into_segments(model.model, ["y"], {})
    data = calibration_data([np.zeros(2, np.float32)], model.inputs)
    with pytest.raises(ModelError, match="onnxruntime must be able to load"):
        list(float_pass(segments, tensor_types(model.model), data, CPU))
