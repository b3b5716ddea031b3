import numpy as np
import onnx
import onnx_ir as ir
import pytest

from observe_oracle import float_model
from quantry.observe.lineage import trace_lineage

X = "g (float[1,4,6,6] x) => (float[a,b,c,d] y)"


def lineage_of(body, head=X, opset=17, **weights):
    return trace_lineage(float_model(f"{head} {{ {body} }}", opset=opset, **weights).model)


def roots(lineage):
    return {term.root for terms in lineage.values() for term in terms}


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(x) y = Mul(x, s)",
        "s = Sigmoid(x) y = Mul(s, x)",
        "h = HardSigmoid(x) m = Mul(x, h) y = Relu(m)",
        "p = Softplus(x) t = Tanh(p) y = Mul(x, t)",
        "r = Relu(x) y = DepthToSpace<blocksize = 2>(r)",
        "t = Transpose<perm = [0, 2, 3, 1]>(x) y = Sigmoid(t)",
        "r = Relu(x) n = Neg(x) y = Concat<axis = 1>(r, n, x)",
        "s = Mul(x, x) y = Add(s, x)",
        "c = Concat<axis = 1>(x, x) s = Sigmoid(c) y = Mul(c, s)",
    ],
)
def test_functions_and_movements_of_the_input_need_no_observation(body):
    assert roots(lineage_of(body)) == {"x"}


@pytest.mark.parametrize(
    ("body", "observed"),
    [
        ("y = MaxPool<kernel_shape = [2, 2]>(x)", {"x", "y"}),
        ("y = Softmax(x)", {"x", "y"}),
        ("y = Sqrt(x)", {"x", "y"}),
        ("a = AveragePool<kernel_shape = [1, 1]>(x) y = Add(a, x)", {"x", "a", "y"}),
        ("t = Transpose<perm = [0, 1, 3, 2]>(x) y = Add(t, x)", {"x", "y"}),
        ("n = Neg(x) y = Div(x, n)", {"x", "y"}),
        ("c = Constant<value = float[4,1,1] {1,2,3,4}>() y = Mul(x, c)", {"x", "y"}),
        ("y = Resize<mode = \"linear\">(x, , s)", {"x", "y"}),
    ],
)  # fmt: skip
def test_what_does_not_follow_from_one_tensor_is_observed(body, observed):
    assert roots(lineage_of(body, s=np.float32([1, 1, 2, 2]))) == observed


@pytest.mark.parametrize(
    ("attributes", "scales", "repeat"),
    [
        ('coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', [1, 1, 3, 2], 6),
        ('coordinate_transformation_mode = "half_pixel"', [1, 1, 3, 5], 15),
        ('coordinate_transformation_mode = "half_pixel", nearest_mode = "round_prefer_ceil"', [1, 1, 4, 1], 4),
        ('coordinate_transformation_mode = "asymmetric"', [1, 1, 2, 2], 4),
        ('coordinate_transformation_mode = "asymmetric"', [1, 1, 3, 3], None),
        ('coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil"', [1, 1, 2, 2], None),
        ('coordinate_transformation_mode = "half_pixel", nearest_mode = "floor"', [1, 1, 2, 2], None),
        ('coordinate_transformation_mode = "align_corners"', [1, 1, 2, 2], None),
        ('coordinate_transformation_mode = "half_pixel"', [1, 1, 1.5, 1.5], None),
        ('coordinate_transformation_mode = "half_pixel"', [1, 1, 0.5, 0.5], None),
    ],
)
def test_nearest_resize_repeats_all_values_alike_or_is_observed(attributes, scales, repeat):
    lineage = lineage_of(f'y = Resize<mode = "nearest", {attributes}>(x, , s)', s=np.float32(scales))
    if repeat is None:
        assert roots(lineage) == {"x", "y"}
    else:
        assert [(term.root, term.repeat) for term in lineage["y"]] == [("x", repeat)]


def test_scalar_constants_of_any_rank_are_followed():
    lineage = lineage_of(
        "a = Sub(x, m) b = Mul(a, s) y = Clip(b, , h)", m=np.float32([[[0.5]]]), s=np.float32([2]), h=np.float32(6)
    )
    assert roots(lineage) == {"x"}


def test_equal_parts_of_a_concatenation_are_counted_together():
    (term,) = lineage_of("r = Relu(x) q = Relu(x) y = Concat<axis = 1>(r, q, r)")["y"]
    assert (term.root, term.repeat) == ("x", 3)


def test_forced_roots_are_roots():
    model = float_model(f"{X} {{ r = Relu(x) y = Neg(r) }}").model
    assert roots(trace_lineage(model, ["r"])) == {"x", "r"}
    assert [term.root for term in trace_lineage(model, ["r"])["y"]] == ["r"]


def test_without_deriving_every_tensor_is_a_root():
    model = float_model(f"{X} {{ r = Relu(x) y = Neg(r) }}").model
    assert roots(trace_lineage(model, derive=False)) == {"x", "r", "y"}


def test_only_float32_activations_are_listed():
    lineage = lineage_of("i = Cast<to = 7>(x) s = Shape(x) a = Add(x, w) y = Relu(a)", w=np.ones((6, 6), np.float32))
    assert list(lineage) == ["x", "a", "y"]


def test_tensors_inside_subgraphs_are_not_listed_but_their_results_are():
    branch = "float[1,4,6,6] o"
    lineage = lineage_of(
        f"y = If (c) <then_branch = t () => ({branch}) {{ o = Relu(x) }}, "
        f"else_branch = e () => ({branch}) {{ o = Neg(x) }}>",
        head="g (float[1,4,6,6] x, bool c) => (float[1,4,6,6] y)",
    )
    assert list(lineage) == ["x", "y"]
    assert roots(lineage) == {"x", "y"}


def test_initializers_among_the_inputs_are_no_activations():
    model = float_model(f"{X} {{ y = Add(x, w) }}", w=np.float32([1.0])).model
    model.graph.inputs.append(model.graph.initializers["w"])
    assert "w" not in trace_lineage(model)


def test_long_chains_are_cut_by_observing():
    body = "".join(f"t{i} = Mul(t{i - 1}, t{i - 1}) " for i in range(1, 40)).replace("t0", "x")
    lineage = lineage_of(body + "y = Relu(t39)")
    assert 1 < len(roots(lineage)) < 40


def test_tensor_of_unknown_type_is_a_root():
    graph = onnx.parser.parse_graph(f"{X} {{ m = com.microsoft.Gelu(x) y = Relu(m) }}")
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets))
    assert roots(trace_lineage(model)) >= {"x", "m"}


def test_nodes_that_compute_the_same_are_observed_once():
    body = (
        "a = Slice(x, b0, e, x2, s) b = Slice(x, b1, e, x2, s) c = Slice(x, o, e, x2, s) y = Concat<axis = 2>(a, b, c)"
    )
    starts = {"b0": np.array([0]), "b1": np.array([0]), "o": np.array([1])}
    lineage = lineage_of(body, **starts, e=np.array([6]), x2=np.array([2]), s=np.array([2]))
    assert roots(lineage) == {"x", "a", "c"}
    assert lineage["b"] == lineage["a"]


def test_random_nodes_are_all_observed():
    lineage = lineage_of("a = RandomUniformLike(x) b = RandomUniformLike(x) y = Concat<axis = 1>(a, b)")
    assert roots(lineage) == {"x", "a", "b"}
