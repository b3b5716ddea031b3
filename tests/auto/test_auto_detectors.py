"""`auto` on detectors: distances as expected values over bins, boxes in pixels next to probabilities in one output."""

import numpy as np
import onnx
import onnxruntime
import pytest
from test_auto import model_of

import quantry
from quantry.auto import AutoResult
from quantry.diagnosis.fix import last_nodes
from quantry.memo import MemoryStore

BINS, CLASSES, PLACES = 16, 3, 64

HEAD = f"""g (float[1,3,32,32] x) => (float[1,{4 + CLASSES},{PLACES}] y)
{{
  scaled = Div(x, pixels)
  a = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(scaled, w1) s = Sigmoid(a) f = Mul(a, s)
  b = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(f, w2) t = Sigmoid(b) g = Mul(b, t)
  boxes = Conv(g, w3) scores = Conv(g, w4, b4)
  joined = Concat<axis=1>(boxes, scores)
  flat = Reshape(joined, flat_shape)
  bins, logits = Split<axis=1>(flat, sizes)
  grouped = Reshape(bins, bins_shape) turned = Transpose<perm=[0, 2, 1, 3]>(grouped)
  shares = Softmax<axis=1>(turned) expected = Conv(shares, arange) distances = Reshape(expected, box_shape)
  left, right = Split<axis=1>(distances, halves)
  first = Sub(centres, left) second = Add(centres, right)
  sum = Add(first, second) middle = Div(sum, two) size = Sub(second, first)
  cells = Concat<axis=1>(middle, size) rows = Mul(cells, stride)
  chances = Sigmoid(logits) y = Concat<axis=1>(rows, chances)
}}"""


def detector() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    centres = np.stack(np.meshgrid(np.arange(8) + 0.5, np.arange(8) + 0.5)).reshape(1, 2, PLACES)
    model = model_of(
        HEAD,
        w1=rng.standard_normal((8, 3, 3, 3)) / 3,
        w2=rng.standard_normal((16, 8, 3, 3)) / 4,
        w3=rng.standard_normal((4 * BINS, 16, 1, 1)) / 3,
        w4=rng.standard_normal((CLASSES, 16, 1, 1)),
        b4=np.full(CLASSES, -4.0),
        arange=np.arange(BINS).reshape(1, BINS, 1, 1),
        centres=centres,
        pixels=255.0,
        two=2.0,
        stride=8.0,
    )
    shapes = {
        "flat_shape": (1, 4 * BINS + CLASSES, PLACES),
        "sizes": (4 * BINS, CLASSES),
        "bins_shape": (1, 4, BINS, PLACES),
        "box_shape": (1, 4, PLACES),
        "halves": (2, 2),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(shape, np.int64), name) for name, shape in shapes.items()
    )
    return model


def scenes(count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (1, 3, 32, 32)).astype(np.float32) for _ in range(count)]


def channel_decibels(model: onnx.ModelProto, result: quantry.QuantizationResult) -> np.ndarray:
    """Return the signal-to-noise ratio of each row of the output on unseen inputs."""
    sessions = [
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"])
        for one in (model.SerializeToString(), result.to_bytes())
    ]
    ours, theirs = (
        np.concatenate([one.run(None, {"x": sample})[0] for sample in scenes(12, 9)], axis=2) for one in sessions
    )
    signal = ours - ours.mean(axis=2, keepdims=True)
    return 10 * np.log10(np.square(signal).sum(axis=(0, 2)) / np.square(theirs - ours).sum(axis=(0, 2)))


def test_decoding_of_boxes_is_not_rounded_to_the_scale_of_pixels() -> None:
    model = detector()
    plain = quantry.quantize(model, scenes(12, 1), "XINT8", store=None)
    found = quantry.quantize(model, scenes(12, 1), target="vitisai", effort="low", store=MemoryStore())
    assert isinstance(found, AutoResult)
    before, after = channel_decibels(model, plain), channel_decibels(model, found)
    assert before[4:].min() < 6  # probabilities share the scale of pixels
    assert after[4:].min() > 15
    assert (after[:4] > before[:4] + 5).all()
    assert "the nodes after the last layers in float" in found.auto.kept


@pytest.mark.parametrize("preset", ["XINT8", "CPU_INT8"])
def test_expected_value_over_bins_belongs_to_what_follows_the_last_layers(preset: str) -> None:
    result = quantry.quantize(detector(), scenes(2, 1), preset, store=None)
    after, layers = last_nodes(result.stages.equalized.value.model, result.plan)
    kinds = [name.split("_")[0] for name in layers]
    assert kinds == ["Conv", "Conv"]
    assert any(name.startswith("Softmax") for name in after)
    assert any(name.startswith("Conv") for name in after)


STREAM = """g (float[1,16,32] x) => (float[1,16,8] y)
{
  s1 = Add(x, start) n1 = LayerNormalization(s1, gain1, zero) h1 = MatMul(n1, w1) e1 = Erf(h1) o1 = MatMul(e1, w2)
  s2 = Add(s1, o1) n2 = LayerNormalization(s2, gain2, zero) h2 = MatMul(n2, w3) e2 = Erf(h2) o2 = MatMul(e2, w4)
  s3 = Add(s2, o2) n3 = LayerNormalization(s3, gain3, zero) y = MatMul(n3, w5)
}"""


def test_transformer_with_outlier_channels_does_not_collapse_on_an_npu() -> None:
    rng = np.random.default_rng(7)
    loud = np.ones(32)
    loud[[3, 17]] = 200.0
    weights = {
        f"w{k}": rng.standard_normal(size) / np.sqrt(size[0])
        for k, size in enumerate([(32, 48), (48, 32), (32, 48), (48, 32), (32, 8)], start=1)
    }
    # The channels that are loud in the stream are quiet after each normalization, as in trained transformers.
    model = model_of(STREAM, start=loud - 1, zero=np.zeros(32), **{f"gain{k}": 20 / loud for k in (1, 2, 3)}, **weights)
    data, unseen = ([rng.standard_normal((1, 16, 32)).astype(np.float32) for _ in range(count)] for count in (8, 8))
    found = quantry.quantize(model, data, target="vitisai", effort="low", store=None)
    assert isinstance(found, AutoResult)
    sessions = [
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"])
        for one in (model.SerializeToString(), found.to_bytes())
    ]
    ours, theirs = (np.concatenate([one.run(None, {"x": sample})[0] for sample in unseen]) for one in sessions)
    assert 10 * np.log10(np.square(ours).sum() / np.square(ours - theirs).sum()) > 15
    assert found.auto.start.mean_decibels < 10
    assert found.auto.kept[0] == "sums in front of normalizations in float"
