"""One table of stages: what it predicts for a recipe is what the pipeline runs, and the documentation shows it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import quantry
from quantry.memo import MemoryStore, Stage
from quantry.recipe import PRESETS
from quantry.stages import REWRITES, WORK, WORK_OF, planned_work

_TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,12,12] x) => (float[1,6,8,8] y)
    { a = Conv(x, w, c) r = Relu(a) b = Conv(r, v, d) s = Relu(b) n = GlobalAveragePool(s) y = Add(s, n) }"""


def network() -> onnx.ModelProto:
    model = parser.parse_model(_TEXT)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (8, 3, 3, 3), "c": (8,), "v": (6, 8, 3, 3), "d": (6,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def samples() -> list[np.ndarray]:
    return [np.random.default_rng(seed).normal(size=(1, 3, 12, 12)).astype(np.float32) for seed in range(3)]


def _trains(name: str) -> bool:
    return any(hasattr(step, "iterations") for step in PRESETS[name].recipe.tune.steps)


@pytest.mark.parametrize("name", [name for name in PRESETS if not _trains(name)])
def test_predicted_passes_are_those_that_run(name: str) -> None:
    recipe = PRESETS[name].recipe
    result = quantry.quantize(network(), samples(), recipe, store=MemoryStore())
    runs = [WORK_OF[entry.stage] for entry in result.trace.entries if entry.stage in WORK_OF]
    planned = [work for work, _ in planned_work(recipe)]
    calibrates = result.stages.statistics is not None
    # A rewrite that has nothing to do in this model needs no pass, and types without scales need none at all.
    idle = sum(
        rewrite.needs is not None and not rewrite.needs(result.stages.prepared.value, recipe).channels
        for rewrite in REWRITES
        if rewrite.is_in(recipe)
    )
    passes = planned.count("observe") - (not calibrates)
    assert passes - idle <= runs.count("observe") <= passes
    assert {"prepare", "plan", "scale", "emit"} <= set(runs)
    assert ("convert" in runs) == ("convert" in planned)
    assert ("mix" in runs) == ("mix" in planned)
    tuned = [entry for entry in result.trace.entries if entry.stage == "tune"]
    assert len(tuned) == planned.count("tune")


def test_every_stage_of_a_quantization_is_a_kind_of_work() -> None:
    names = [stage for work in WORK for stage in work.stages]
    assert len(names) == len(set(names))
    assert all(isinstance(rewrite.stage, Stage) and rewrite.stage.name in WORK_OF for rewrite in REWRITES)


def test_the_architecture_page_shows_the_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    rows = [f"| {work.name} | {work.does} | {', '.join(f'`{name}`' for name in work.stages)} |" for work in WORK]
    assert "\n".join(rows) in page
