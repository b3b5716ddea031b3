"""What every preset writes for the reference network: operators and types, as counts that a reader can check."""

import json
from collections import Counter
from pathlib import Path

import emit_cases as cases
import onnx
import pytest

import quantry
from quantry.recipe import PRESETS

SNAPSHOTS = Path(__file__).parent / "preset_snapshots.json"


def snapshot(name: str) -> dict[str, dict[str, int]]:
    """Count operators and types of constants; `python tests/emit/test_emit_presets.py` writes all of them again."""
    recipe = PRESETS[name].recipe
    model = cases.proto(cases.emitted(recipe, recipe.emit.format))
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node)
    constants = Counter(onnx.TensorProto.DataType.Name(entry.data_type).lower() for entry in model.graph.initializer)
    return {"operators": dict(sorted(operators.items())), "constants": dict(sorted(constants.items()))}


@pytest.mark.parametrize("name", cases.distinct_presets())
def test_preset_writes_what_its_snapshot_says(name: str) -> None:
    assert snapshot(name) == json.loads(SNAPSHOTS.read_text())[name]


def test_preset_that_writes_what_another_does_tunes_or_changes_layers() -> None:
    distinct = set(cases.distinct_presets())
    for name, preset in PRESETS.items():
        assert name in distinct or preset.recipe.tune.steps or preset.recipe.mix.mixed, name


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.recipe.mix.mixed is not None])
def test_preset_of_mixed_precision_changes_layers(name: str) -> None:
    result = quantry.quantize(cases.float_bytes(), list(cases.samples()), name, store=None)
    types = {weight.spec.dtype for weight in result.plan.weights.values()}
    assert types != {PRESETS[name].recipe.plan.weight.dtype}
    assert result.evaluation.metrics["cosine"].value > 0.99


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if "QUARK" in str(preset.recipe.emit)])
def test_preset_that_needs_no_calibration_plans_no_integer_activation(name: str) -> None:
    assert not PRESETS[name].recipe.plan.activation.dtype.is_integer


if __name__ == "__main__":
    SNAPSHOTS.write_text(json.dumps({name: snapshot(name) for name in cases.distinct_presets()}, indent=1) + "\n")
