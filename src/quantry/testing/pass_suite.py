"""What every graph pass must do."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from quantry.graph.save import serialize
from quantry.notes import Note
from quantry.runtime.sessions import deployment_session, run_session
from quantry.testing.small_model import small_model

GraphPass = Callable[[ir.Model], tuple[Note, ...]]
"""Edits a model in place and returns notes for the user."""


def _feeds(model: onnx.ModelProto, seed: int) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: generator.normal(
            size=[dimension.dim_value or 2 for dimension in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
        if value.name not in constants
    }


class PassSuite:
    """Inherit as ``class TestMyPass(PassSuite)`` and supply the fixtures `graph_pass` and `model`.

    Example:
        ::

            class TestFoldBatchNorm(PassSuite):
                @pytest.fixture
                def graph_pass(self):
                    return fold_batch_norm

                @pytest.fixture
                def model(self):
                    return onnx.parser.parse_model(CONV_AND_BATCH_NORM)
    """

    TOLERANCE = 1e-5
    """Largest difference of outputs, relative to the largest output; rounding of folded constants needs some."""

    @pytest.fixture
    def graph_pass(self) -> GraphPass:
        """The pass under test."""
        raise NotImplementedError("Supply the fixture `graph_pass`.")

    @pytest.fixture
    def model(self) -> onnx.ModelProto:
        """A model with float inputs that the pass changes."""
        raise NotImplementedError("Supply the fixture `model`.")

    def test_the_pass_changes_the_model_it_is_tested_on(self, graph_pass: GraphPass, model: onnx.ModelProto) -> None:
        """Otherwise the other tests prove nothing."""
        graph = ir.serde.deserialize_model(model)
        original = serialize(graph)
        graph_pass(graph)
        assert serialize(graph) != original

    @pytest.mark.parametrize("seed", range(3))
    def test_outputs_stay_the_same(self, graph_pass: GraphPass, model: onnx.ModelProto, seed: int) -> None:
        """Onnxruntime computes the same before and after."""
        graph = ir.serde.deserialize_model(model)
        graph_pass(graph)
        feeds = _feeds(model, seed)
        expected = run_session(deployment_session(model.SerializeToString()), feeds)
        actual = run_session(deployment_session(serialize(graph)), feeds)
        for name, value in expected.items():
            scale = max(1.0, float(np.abs(value).max(initial=0)))
            np.testing.assert_allclose(actual[name], value, rtol=0, atol=self.TOLERANCE * scale)

    def test_inputs_and_outputs_keep_their_names(self, graph_pass: GraphPass, model: onnx.ModelProto) -> None:
        """Users feed and read models by name."""
        graph = ir.serde.deserialize_model(model)
        names = [value.name for value in graph.graph.inputs], [value.name for value in graph.graph.outputs]
        graph_pass(graph)
        assert ([value.name for value in graph.graph.inputs], [value.name for value in graph.graph.outputs]) == names

    def test_the_result_is_a_valid_model(self, graph_pass: GraphPass, model: onnx.ModelProto) -> None:
        """Onnx's own checker accepts it."""
        graph = ir.serde.deserialize_model(model)
        graph_pass(graph)
        onnx.checker.check_model(ir.serde.serialize_model(graph), full_check=True)

    def test_a_second_run_finds_nothing_left(self, graph_pass: GraphPass, model: onnx.ModelProto) -> None:
        """Passes run in a fixed order, once; what they leave must be final."""
        graph = ir.serde.deserialize_model(model)
        graph_pass(graph)
        once = serialize(graph)
        graph_pass(graph)
        assert serialize(graph) == once

    def test_two_runs_give_the_same_bytes(self, graph_pass: GraphPass, model: onnx.ModelProto) -> None:
        """Results are stored by content, so names of new nodes must not depend on chance."""
        graphs = [ir.serde.deserialize_model(model) for _ in range(2)]
        notes = [graph_pass(graph) for graph in graphs]
        assert serialize(graphs[0]) == serialize(graphs[1])
        assert notes[0] == notes[1]

    def test_notes_are_sentences(self, graph_pass: GraphPass, model: onnx.ModelProto) -> None:
        """Notes reach the user as they are."""
        notes = graph_pass(ir.serde.deserialize_model(model))
        assert isinstance(notes, tuple)
        assert all(isinstance(note, Note) and str(note) for note in notes)

    def test_a_model_without_its_pattern_still_runs(self, graph_pass: GraphPass) -> None:
        """A pass leaves alone what it does not know."""
        model = small_model()
        graph = ir.serde.deserialize_model(model)
        graph_pass(graph)
        feeds = _feeds(model, 0)
        expected = run_session(deployment_session(model.SerializeToString()), feeds)["y"]
        actual = run_session(deployment_session(serialize(graph)), feeds)["y"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
