"""quant_pre_process: every argument."""

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from facade_models import cnn, operators, run, samples, saved_cnn
from onnx import TensorProto, helper

from quantry.errors import RecipeError
from quantry.onnx import quant_pre_process


def processed(folder: Path, **arguments: object) -> onnx.ModelProto:
    quant_pre_process(saved_cnn(folder), str(folder / "out.onnx"), **arguments)  # type: ignore[arg-type]
    return onnx.load(folder / "out.onnx", load_external_data=False)


def described(model: onnx.ModelProto) -> set[str]:
    return {info.name for info in model.graph.value_info}


def test_model_is_cleaned_up_and_computes_the_same(tmp_path: Path) -> None:
    model = processed(tmp_path)
    kinds = {kind for _, kind in operators(model)}
    assert not kinds & {"BatchNormalization", "Constant"}
    assert "c2" in described(model)
    sample = samples(1)[0]
    np.testing.assert_allclose(run(model, sample)[0], run(cnn(), sample)[0], rtol=1e-4, atol=1e-5)


def test_optimization_can_be_skipped(tmp_path: Path) -> None:
    assert "BatchNormalization" in {kind for _, kind in operators(processed(tmp_path, skip_optimization=True))}


def test_shapes_are_missing_if_both_inferences_are_skipped(tmp_path: Path) -> None:
    assert "c2" not in described(processed(tmp_path, skip_onnx_shape=True, skip_symbolic_shape=True))


@pytest.mark.parametrize("skipped", ["skip_onnx_shape", "skip_symbolic_shape"])
def test_shapes_are_present_if_one_inference_is_skipped(tmp_path: Path, skipped: str) -> None:
    assert "c2" in described(processed(tmp_path, **{skipped: True}))


def test_conflicting_dimensions_do_not_stop_inference(tmp_path: Path) -> None:
    assert processed(tmp_path, auto_merge=True) == processed(tmp_path, auto_merge=False)


@pytest.mark.parametrize("arguments", [{"int_max": 0}, {"verbose": 7}])
def test_unsupported_argument_raises(tmp_path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=next(iter(arguments))):
        processed(tmp_path, **arguments)
    assert not (tmp_path / "out.onnx").exists()


def test_verbose_logs_what_was_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    processed(tmp_path, verbose=0)
    assert not caplog.records
    processed(tmp_path, verbose=3)
    assert "BatchNormalization" in caplog.text
    assert logging.getLogger("quantry").level == logging.NOTSET


def test_weights_go_to_one_file(tmp_path: Path) -> None:
    model = processed(
        tmp_path, save_as_external_data=True, all_tensors_to_one_file=True, external_data_size_threshold=64
    )
    assert (tmp_path / "out.onnx.data").is_file()
    assert any(entry.external_data for entry in model.graph.initializer)
    assert run(str(tmp_path / "out.onnx"), samples(1)[0])[0].shape == (2, 5)


def test_file_of_weights_has_the_name_that_was_given(tmp_path: Path) -> None:
    processed(
        tmp_path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        external_data_location="weights.bin",
        external_data_size_threshold=64,
    )
    assert (tmp_path / "weights.bin").is_file()


def test_weights_go_to_one_file_each(tmp_path: Path) -> None:
    model = processed(
        tmp_path, save_as_external_data=True, external_data_location="parts", external_data_size_threshold=64
    )
    outside = [entry.name for entry in model.graph.initializer if entry.external_data]
    assert sorted(outside) == ["w1", "w2", "w3"]
    assert len(list((tmp_path / "parts").iterdir())) == 3
    sample = samples(1)[0]
    reference = run(cnn(), sample)[0]
    np.testing.assert_allclose(run(str(tmp_path / "out.onnx"), sample)[0], reference, rtol=1e-4, atol=1e-5)


def test_small_weights_stay_inside_by_default(tmp_path: Path) -> None:
    model = processed(tmp_path, save_as_external_data=True)
    assert not any(entry.external_data for entry in model.graph.initializer)


def test_rank_of_unknown_operators_is_guessed_on_request(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Inverse", ["x"], ["m"], domain="com.microsoft", name="inverse"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    ranks = {}
    for guess in (False, True):
        quant_pre_process(model, tmp_path / "out.onnx", guess_output_rank=guess, int_max=1000)
        found = onnx.load(tmp_path / "out.onnx").graph
        values = [value for value in (*found.value_info, *found.output) if value.type.tensor_type.HasField("shape")]
        ranks[guess] = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    assert ranks == {False: {}, True: {"m": 3, "y": 3}}
