"""`fix` and ``quantry diagnose --fix``: every suggested fix is measured, and those that help are combined."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_auto import agreement, pictures, pooled
from test_auto_detectors import channel_decibels, detector, scenes
from typer.testing import CliRunner

import quantry
from quantry.auto import FixResult
from quantry.cli.app import app
from quantry.errors import DataError, RecipeError
from quantry.memo import MemoryStore
from quantry.recipe import Recipe, find_preset


def quantized_pools() -> Recipe:
    """recommended-npu, but with the mistake to be found: the final pool is quantized."""
    recipe = find_preset("recommended-npu").recipe
    return replace(recipe, plan=replace(recipe.plan, float_final_pools=False))


@pytest.fixture(scope="module")
def fixed() -> FixResult:
    result = quantry.quantize(pooled(), pictures(32), quantized_pools(), store=MemoryStore())
    return quantry.fix(result)


def test_causes_are_ordered_by_the_measured_gain_of_their_fix(fixed: FixResult) -> None:
    gains = [finding.gain for finding in fixed.diagnosis.findings]
    assert gains[0] is not None
    assert gains[0] == max(gain for gain in gains if gain is not None)
    assert gains[0] > 0.5
    assert f"[{gains[0]:+.1f} dB on held-out samples]" in str(fixed)


def test_fixed_model_decides_more_like_the_float_model(fixed: FixResult) -> None:
    before = quantry.quantize(pooled(), pictures(32), quantized_pools(), store=None)
    unseen = pictures(100, seed=2)
    assert agreement(pooled(), fixed.result, unseen) > agreement(pooled(), before, unseen) + 0.1
    assert "GlobalAveragePool_2" in fixed.result.recipe.plan.selection.exclude
    assert fixed.result.auto.closeness.mean_decibels > fixed.result.auto.start.mean_decibels


def test_result_without_data_cannot_be_fixed() -> None:
    with pytest.warns(UserWarning, match="random"):
        result = quantry.quantize(pooled(4), None, "XINT8", store=None)
    with pytest.raises(DataError, match="calibrated without any"):
        quantry.fix(result)


def test_command_diagnoses_and_fixes_a_model_that_was_written_before(tmp_path: Path) -> None:
    onnx.save(pooled(8), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.concatenate(pictures(12)))
    quantry.quantize(tmp_path / "m.onnx", pictures(12), "XINT8", store=None).save(tmp_path / "q.onnx")
    given = ["diagnose", str(tmp_path / "m.onnx"), "-d", str(tmp_path / "x.npy"), "--store", str(tmp_path / "store")]
    given += ["--recipe", str(tmp_path / "q.onnx")]
    plain = CliRunner().invoke(app, given, catch_exceptions=False)
    assert plain.exit_code == 0, plain.output
    assert "of the decisions are those of the float model" in plain.output
    out = tmp_path / "fixed.onnx"
    done = CliRunner().invoke(
        app, ["--json", *given, "--fix", "--effort", "low", "-o", str(out)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    facts = facts.get("result", facts)
    assert facts["fixed"]["decibels"]["last"] >= facts["fixed"]["decibels"]["first"]
    assert any(finding["gain"] is not None for finding in facts["findings"])
    assert onnx.load(out).graph.output[0].name == "y"
    refused = CliRunner().invoke(app, [*given, "-o", str(out)])
    assert isinstance(refused.exception, RecipeError)
    assert "need --fix" in str(refused.exception)


def test_fixes_that_depend_on_each_other_are_found_one_after_the_other() -> None:
    """Sigmoid becomes HardSigmoid, which breaks the scores; then the decoding of boxes is what costs most."""
    result = quantry.quantize(detector(), scenes(16, 1), "XINT8", store=MemoryStore())
    fixed = quantry.fix(result, target="vitisai")
    before, after = (channel_decibels(detector(), one) for one in (result, fixed.result))
    assert (after > before + 4).all()
    assert not any(step.decibels is None for step in fixed.result.auto.steps)
    assert fixed.result.auto.kept[0] == "Sigmoid is kept"
