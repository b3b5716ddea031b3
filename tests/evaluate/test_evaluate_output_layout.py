"""What the axes of outputs mean: a comparison does not depend on how a detector's outputs are joined."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from quantry.evaluate.decisions import MapPart, map_agreement, map_decibels
from quantry.evaluate.metrics.metric import Pair
from quantry.evaluate.output_layout import OutputLayout, output_layout
from quantry.evaluate.tasks import Closeness
from quantry.runtime.sessions import run_session, simulation_session

# Boxes and scores of two scales, as most detectors compute them: [1, 4, n, n] and [1, 3, n, n].
PARTS = """
  boxes1 = Conv(x, w_boxes) chances1 = Conv(x, w_scores) scores1 = Sigmoid(chances1)
  small = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(x)
  boxes2 = Conv(small, w_boxes) chances2 = Conv(small, w_scores) scores2 = Sigmoid(chances2)
"""
# All positive, so that both stand out where the input does.
WEIGHTS = [f"{value:.3f}" for value in np.random.default_rng(6).uniform(0.5, 1.5, 28)]
FLAT = """
  b1 = Reshape(boxes1, four_rows) b2 = Reshape(boxes2, four_rows) s1 = Reshape(scores1, three_rows)
  s2 = Reshape(scores2, three_rows)
"""
DETECTORS = {
    "joined in rows": ("float[1,7,80] y", FLAT + "p = Concat<axis=1>(b1, s1) q = Concat<axis=1>(b2, s2)"
                       " y = Concat<axis=2>(p, q)"),
    "joined in columns": ("float[1,80,7] y", FLAT + "p = Concat<axis=1>(b1, s1) q = Concat<axis=1>(b2, s2)"
                          " r = Concat<axis=2>(p, q) y = Transpose<perm=[0, 2, 1]>(r)"),
    "scales first": ("float[1,7,80] y", FLAT + "b = Concat<axis=2>(b1, b2) s = Concat<axis=2>(s1, s2)"
                     " y = Concat<axis=1>(b, s)"),
    "two outputs": ("float[1,4,80] b, float[1,3,80] s", FLAT + "b = Concat<axis=2>(b1, b2) s = Concat<axis=2>(s1, s2)"),
    "no batch axis": ("float[80,4] b, float[80,3] s", FLAT + "c = Concat<axis=2>(b1, b2) t = Concat<axis=2>(s1, s2)"
                      " d = Transpose<perm=[0, 2, 1]>(c) u = Transpose<perm=[0, 2, 1]>(t)"
                      " b = Squeeze<axes=[0]>(d) s = Squeeze<axes=[0]>(u)"),
}  # fmt: skip


def model_of(outputs: str, body: str) -> ir.Model:
    text = f"g (float[1,4,8,8] x, float[1,4,2,2] few) => ({outputs}) <int64[3] four_rows = {{1, 4, -1}}, "
    text += "int64[3] three_rows = {1, 3, -1}, float[4,4,1,1] w_boxes = {" + ", ".join(WEIGHTS[:16]) + "}, "
    text += "float[3,4,1,1] w_scores = {" + ", ".join(WEIGHTS[16:]) + "}> {" + body + "}"
    graph = onnx.parser.parse_graph(text)
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for one in [one for one in graph.input if one.name not in read]:
        graph.input.remove(one)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 12)], ir_version=8)
    return ir.serde.deserialize_model(model)


def detector(name: str) -> ir.Model:
    outputs, joined = DETECTORS[name]
    return model_of(outputs, PARTS + joined)


def feeds() -> dict[str, np.ndarray]:
    x = 0.1 * np.random.default_rng(0).standard_normal((1, 4, 8, 8))
    x[0, :, 2, 3] = 3.0  # the one object
    x[0, :, 6, 5] = 2.5
    return {"x": (x - 2).astype(np.float32)}


def closeness(model: ir.Model, layout: OutputLayout, noise: Mapping[str, np.ndarray]) -> Closeness:
    session = simulation_session(model)
    ours, theirs = run_session(session, feeds()), run_session(session, dict(noise))
    pairs = {name: Pair(ours[name].astype(np.float64), theirs[name].astype(np.float64)) for name in ours}
    return Closeness.of([pairs], layout)


@pytest.mark.parametrize("name", DETECTORS)
def test_closeness_does_not_depend_on_how_outputs_are_joined(name: str) -> None:
    rng = np.random.default_rng(1)
    noisy = {"x": (feeds()["x"] + 0.05 * rng.standard_normal((1, 4, 8, 8))).astype(np.float32)}
    model, usual = detector(name), detector("two outputs")
    found = closeness(model, output_layout(model, feeds()), noisy)
    expected = closeness(usual, output_layout(usual, feeds()), noisy)
    assert found.decibels == pytest.approx(expected.decibels, abs=1e-6)
    assert found.agreement == pytest.approx(expected.agreement, abs=1e-6)


def test_channels_that_come_from_the_same_places_are_one_part() -> None:
    for name in ("joined in rows", "joined in columns"):
        assert output_layout(detector(name), feeds()).parts["y"] == ((0, 1, 2, 3), (4, 5, 6))
    assert output_layout(detector("two outputs"), feeds()).parts == {}
    assert output_layout(detector("no batch axis"), feeds()).without_batch == {"b", "s"}


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("float[1,4,8,8] x", ""),
        ("float[1,8,8,8] y", "y = Concat<axis=1>(x, x)"),
        ("float[1,4,8,8] y", "z = Add(x, x) y = Identity(z)"),
        ("int64[4] y, float[1,5,8,8] z", "y = Shape(x) m = ReduceMax<axes=[1]>(x) z = Concat<axis=1>(x, m)"),
        ("seq(float[1,4,8,8]) y", "y = SequenceConstruct(x, x)"),
    ],
    ids=["input", "twice the input", "copy", "whole numbers", "sequence"],
)
def test_unusual_outputs_have_a_layout(outputs: str, body: str) -> None:
    assert isinstance(output_layout(model_of(outputs, body), feeds()), OutputLayout)


def test_channels_that_no_quantization_changes_are_left_out() -> None:
    """Anchors and a cache that the model was given are equal in both models and would hide all errors."""
    anchors = FLAT + "x1 = Reshape(x, four_rows) p = Concat<axis=1>(b1, s1) y = Concat<axis=1>(p, x1)"
    layout = output_layout(model_of("float[1,11,64] y", PARTS + anchors), feeds())
    assert layout.parts == {"y": ((0, 1, 2, 3), (4, 5, 6))}
    cache = "z = Relu(x) y = Concat<axis=2>(x, z)"
    assert output_layout(model_of("float[1,4,16,8] y", cache), feeds()).parts == {}


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("int64[2,n] y", "a = Conv(x, w_scores) b = Relu(a) y = NonZero(b)"),
        ("float[1,6,0] y", "a = Conv(x, w_scores) z = Slice(a, from, from, at) y = Concat<axis=1>(z, z)"),
        ("float[8,32] y", "a = Conv(x, w_boxes) r = Relu(a) y = Flatten<axis=3>(r)"),
    ],
    ids=["values decide how many", "empty", "class scores"],
)
def test_outputs_that_are_no_map_keep_their_form(outputs: str, body: str) -> None:
    if "Slice" in body:
        body = "from = Constant<value_ints=[0]>() at = Constant<value_ints=[2]>() " + body
    layout = output_layout(model_of(outputs, body), feeds())
    assert layout.without_batch == layout.maps == frozenset()


def test_scores_of_one_class_belong_to_the_boxes_of_the_same_positions() -> None:
    body = "a = Conv(x, w_boxes) b = Reshape(a, four_rows) boxes = Transpose<perm=[0, 2, 1]>(b)"
    body += " m = ReduceMax<axes=[1]>(a) n = Reshape(m, one_row) s = Sigmoid(n) scores = Transpose<perm=[0, 2, 1]>(s)"
    body = "one_row = Constant<value_ints=[1, 1, -1]>() " + body
    layout = output_layout(model_of("float[1,64,4] boxes, float[1,64,1] scores", body), feeds())
    assert layout.axes == {"boxes": 2, "scores": 2}
    assert layout.maps == {"scores"}


def test_output_of_a_layer_needs_no_run() -> None:
    model = model_of("float[1,4,8,8] b, float[1,3,8,8] s", "b = Conv(x, w_boxes) s = Conv(x, w_scores)")
    assert output_layout(model, {}).axes == {"b": 1, "s": 1}


def test_dense_maps_of_several_kinds_count_everywhere() -> None:
    rng = np.random.default_rng(9)
    classes, flow = rng.standard_normal((2000, 5)), rng.standard_normal((2000, 2))
    worse = classes + 0.1 * rng.standard_normal(classes.shape)
    together = map_decibels([MapPart((2000,), classes, worse), MapPart((2000,), flow, flow)])
    assert together[0] == pytest.approx(MapPart((2000,), classes, worse).decibels())


@pytest.mark.parametrize("values", [np.ones((50, 1)), np.clip(np.linspace(-1, 2, 300), 0, 1).reshape(100, 3)])
def test_equal_maps_agree_whatever_is_tied(values: np.ndarray) -> None:
    assert map_agreement([MapPart((len(values),), values, values.copy())]) == pytest.approx(1.0)


def test_labels_agree_where_they_are_equal() -> None:
    right = np.ones((100, 1))
    right[:7] = 0
    part = MapPart((100,), np.ones((100, 1)), right)
    assert map_agreement([part]) == pytest.approx(0.93)
    assert part.decibels() == pytest.approx(10 * np.log10(100 / 7))


def test_sample_with_another_number_of_channels_is_compared_as_a_whole() -> None:
    layout = OutputLayout({"y": 1}, {"y": ((0,), (1, 2, 3))})
    values = np.random.default_rng(8).standard_normal((1, 2, 30))
    assert Closeness.of([{"y": Pair(values, values * 1.1)}], layout).mean_decibels == pytest.approx(20.0, abs=0.5)


def test_only_positions_where_something_is_found_count_where_a_map_says_several_things() -> None:
    rng = np.random.default_rng(2)
    boxes, scores = rng.standard_normal((100, 4)), np.zeros((100, 3))
    scores[[7, 42], 1] = 0.9, 0.8
    worse_background, worse_object = boxes.copy(), boxes.copy()
    worse_background[60] += 2
    worse_object[42] += 2

    def parts(theirs: np.ndarray) -> list[MapPart]:
        return [MapPart((100,), boxes, theirs), MapPart((100,), scores, scores)]

    lost = map_decibels(parts(worse_background))[0] - map_decibels(parts(worse_object))[0]
    assert lost > 20
    # Scores that only the other model has count as found too.
    phantom = scores.copy()
    phantom[60, 2] = 0.9
    found = map_decibels([MapPart((100,), boxes, worse_background), MapPart((100,), scores, phantom)])
    assert found[0] < 10
    # A map that says one thing, such as a segmentation, counts everywhere.
    (whole,) = map_decibels([MapPart((100,), boxes, worse_background)])
    assert whole == pytest.approx(MapPart((100,), boxes, worse_object).decibels(), abs=0.5)


def test_agreement_of_equal_values_does_not_depend_on_their_order() -> None:
    ours = np.zeros((1000, 2))
    ours[:4] = 1.0
    coarse = np.round(ours)
    part, turned = MapPart((1000,), ours, coarse), MapPart((1000,), ours[::-1].copy(), coarse[::-1].copy())
    assert map_agreement([part]) == pytest.approx(map_agreement([turned]))


def test_axis_of_channels_is_the_one_that_positions_of_a_layer_do_not_move_along() -> None:
    """The values of a map with few positions do not tell which axis is which."""
    body = "a = Conv(x, w_scores) b = Reshape(a, three_rows) y = Transpose<perm=[0, 2, 1]>(b)"
    body += " c = Conv(few, w_scores) d = Sigmoid(c) z = Reshape(d, three_rows)"
    small = np.random.default_rng(5).standard_normal((1, 4, 2, 2)).astype(np.float32)
    found = output_layout(model_of("float[1,64,3] y, float[1,3,4] z", body), {**feeds(), "few": small})
    assert found.axes == {"y": 2, "z": 1}
