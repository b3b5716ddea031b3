"""A search for onnxruntime's CPU provider scores trials with the session that users open."""

from pathlib import Path

import numpy as np
import pytest

import quantry
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.evaluate.arithmetic import arithmetic_in_force, exact_session
from quantry.evaluate.tasks import OutputDistance
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.runtime.sessions import deployment_session, run_session
from quantry.targets import computed_for, is_computed_here
from quantry.targets.arithmetic import computes_on_integers
from quantry.testing.small_model import small_model, small_samples


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for recipe in ("CPU_INT8", "S8S8_AAWS", "A16W8", "XINT8", "UINT8_DYNAMIC_QUANT"):
        paths[recipe] = folder / f"{recipe}.onnx"
        quantry.quantize(small_model().SerializeToString(), small_samples(4), recipe, store=None).save(paths[recipe])
    return paths


def test_only_the_cpu_provider_is_computed_here() -> None:
    assert is_computed_here("ort-cpu")
    assert not any(is_computed_here(name) for name in (None, "", "vitisai", "qnn-htp", "openvino-cpu", "stm32n6"))


def test_which_models_run_on_integers(quantized: dict[str, Path]) -> None:
    assert computes_on_integers(quantized["CPU_INT8"])
    assert computes_on_integers(quantized["S8S8_AAWS"])
    assert computes_on_integers(quantized["UINT8_DYNAMIC_QUANT"])
    assert not computes_on_integers(quantized["A16W8"])
    assert not computes_on_integers(quantized["XINT8"])


@pytest.mark.parametrize("recipe", ["CPU_INT8", "S8S8_AAWS", "A16W8", "XINT8"])
def test_scores_are_those_of_the_session_that_users_open(quantized: dict[str, Path], recipe: str) -> None:
    path, deployed = quantized[recipe], recipe in ("CPU_INT8", "S8S8_AAWS")
    expected = deployment_session(path) if deployed else exact_session(path)
    for feeds in small_samples(3, seed=7):
        wanted = run_session(expected, feeds)
        with computed_for("ort-cpu"):
            got = run_session(arithmetic_in_force().open(path, 1), feeds)
        assert all(np.array_equal(value, got[name]) for name, value in wanted.items())


def test_default_search_scores_the_model_as_it_will_run(tmp_path: Path) -> None:
    path, held_out = tmp_path / "float.onnx", small_samples(4, seed=2)
    path.write_bytes(small_model().SerializeToString())
    found = quantry.search(
        path,
        small_samples(4),
        metric="sqnr",
        evaluation_data=held_out,
        n_trials=3,
        output_dir=tmp_path / "found",
        keep_models="all",
    )
    inputs = input_signatures(model_source(path).load())
    evaluator = OutputDistance(path, SampleCache(calibration_data(held_out, inputs)), "sqnr")
    for trial in found.trials:
        assert trial.model_path is not None
        with computed_for("ort-cpu"):
            assert trial.score == evaluator(trial.model_path)
    uint8 = next(trial for trial in found.trials if computes_on_integers(trial.model_path))
    session = deployment_session(uint8.model_path)
    reference = deployment_session(path)
    ratios = []
    for feeds in held_out:
        ours, theirs = (next(iter(run_session(one, feeds).values())) for one in (reference, session))
        ratios.append(10 * np.log10(np.square(ours.astype(float)).sum() / np.square(ours.astype(float) - theirs).sum()))
    assert uint8.score == pytest.approx(np.mean(ratios), abs=1e-6)
