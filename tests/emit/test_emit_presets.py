"""What every preset writes for the reference network: operators and types, as counts that a reader can check."""

import json
from collections import Counter
from pathlib import Path

import emit_cases as cases
import onnx
import pytest

from quantry.recipe import PRESETS

SNAPSHOTS = Path(__file__).parent / "preset_snapshots.json"


def snapshot(name: str) -> dict[str, dict[str, int]]:
    """Count operators and types of constants; `python tests/emit/test_emit_presets.py` writes all of them anew."""
    recipe = PRESETS[name].recipe
    model = cases.proto(cases.emitted(recipe, recipe.emit.format))
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node)
    constants = Counter(onnx.TensorProto.DataType.Name(entry.data_type).lower() for entry in model.graph.initializer)
    return {"operators": dict(sorted(operators.items())), "constants": dict(sorted(constants.items()))}


@pytest.mark.parametrize("name", cases.distinct_presets())
def test_preset_writes_what_its_snapshot_says(name: str) -> None:
    assert snapshot(name) == json.loads(SNAPSHOTS.read_text())[name]


def test_preset_that_differs_by_finetuning_only_says_that_this_is_missing() -> None:
    distinct = set(cases.distinct_presets())
    for name, preset in PRESETS.items():
        if name not in distinct:
            assert any("finetuning" in pending for pending in preset.pending), name


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if "QUARK" in str(preset.recipe.emit)])
def test_preset_that_needs_no_calibration_plans_no_integer_activation(name: str) -> None:
    assert not PRESETS[name].recipe.plan.activation.dtype.is_integer


if __name__ == "__main__":
    SNAPSHOTS.write_text(json.dumps({name: snapshot(name) for name in cases.distinct_presets()}, indent=1) + "\n")
