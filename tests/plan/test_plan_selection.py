import onnx
import onnx.parser
import pytest

from quantry.errors import SelectionError
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import PlanOptions, PrepareOptions, Selection, Subgraph

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,4] y) {
    [first] a = Sigmoid(x)
    [left] b = Tanh(a)
    [right] c = Relu(a)
    [join] d = Add(b, c)
    [last] y = Sigmoid(d)
}
"""


def quantized(**selection: object) -> set[str]:
    return set(result(**selection).quantized_nodes)


def result(**selection: object) -> QuantPlan:
    model = prepare(model_source(onnx.parser.parse_model(TEXT)), PrepareOptions())
    return plan(model, PlanOptions(selection=Selection(**selection)))  # type: ignore[arg-type]


def test_everything_is_quantized_without_a_selection() -> None:
    assert quantized() == {"first", "left", "right", "join", "last"}


def test_exclusion_by_name_output_or_pattern() -> None:
    assert quantized(exclude=("left",)) == {"first", "right", "join", "last"}
    assert quantized(exclude=("b",)) == {"first", "right", "join", "last"}
    assert quantized(exclude=("^(le|ri)",)) == {"first", "join", "last"}
    assert quantized(exclude=("*t",)) == {"join"}


def test_exclusion_by_operator_type_and_subgraph() -> None:
    assert quantized(exclude_operators=("Sigmoid",)) == {"left", "right", "join"}
    assert quantized(exclude_subgraphs=(Subgraph(("left",), ("join",)),)) == {"first", "right", "last"}


def test_input_nodes_leave_their_ancestors_float_and_output_nodes_their_descendants() -> None:
    assert quantized(input_nodes=("left",)) == {"left", "right", "join", "last"}
    assert quantized(output_nodes=("left", "right")) == {"first", "left", "right"}


def test_allow_lists_of_nodes_and_operator_types() -> None:
    assert quantized(include=("join", "last")) == {"join", "last"}
    assert quantized(operators=("Add",)) == {"join"}


def test_reason_names_the_entry_unless_it_is_the_name_of_the_node() -> None:
    (declined,) = result(exclude=("le*",)).declined
    assert declined.reason == "excluded by 'le*'"
    named = result(exclude=("left", "right"))
    assert {reason: [declined.node for declined in nodes] for reason, nodes in named.float_because.items()} == {
        "excluded by its name": ["left", "right"]
    }


@pytest.mark.parametrize(
    ("selection", "hint"),
    [
        ({"exclude": ("lefft",)}, "did you mean 'left'"),
        ({"exclude": ("^nothing",)}, "matches none of its 5 nodes"),
        ({"exclude": ("(le|ri).*",)}, r"did you mean '\^\(le\|ri\)\.\*'\? Regular expressions .* matches 2"),
        ({"exclude": ("x*",)}, "matches none of its 5 nodes"),
        ({"exclude": ("^(",)}, "valid regular expressions"),
        ({"include": ("jion",)}, "did you mean 'join'"),
        ({"input_nodes": ("fist",)}, "did you mean 'first'"),
        ({"output_nodes": ("lst",)}, "did you mean 'last'"),
        ({"operators": ("Sigmod",)}, "did you mean 'Sigmoid'"),
        ({"exclude_operators": ("^[",)}, "valid regular expressions"),
        ({"exclude_operators": ("Conv",)}, "it has Add, Relu, Sigmoid, Tanh"),
        ({"exclude_subgraphs": (Subgraph(("left",), ("right",)),)}, "no path from"),
    ],
)
def test_entry_that_selects_nothing_is_an_error(selection: dict[str, object], hint: str) -> None:
    with pytest.raises(SelectionError, match=hint):
        result(**selection)
