"""The guard: a broken result says so in its first line, and recipes with a fallback replace what makes them worse."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text

import quantry
from quantry.evaluate import GuardReport
from quantry.notes import Note, NoteKind
from quantry.recipe import PRESETS, EvaluateOptions

CPU = PRESETS["CPU_INT8"].recipe


def spread_channels() -> onnx.ModelProto:
    """Return a block whose channels differ by 2**13, which one scale for all of them destroys."""
    random = np.random.default_rng(0)
    spread = np.exp2(random.uniform(-9, 4, 32)).astype(np.float32)
    first = random.standard_normal((32, 3, 1, 1)).astype(np.float32) * spread[:, None, None, None]
    last = random.standard_normal((6, 32, 1, 1)).astype(np.float32) / spread[None, :, None, None]
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,6,8,8] y)
        { a = Conv(x, first) r = Sigmoid(a) s = Mul(a, r) y = Conv(s, last) }"""
    return from_text(text, first=first, last=last)


def even_channels() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {"first": (16, 3, 3, 3), "last": (6, 16, 1, 1)}
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,6,6,6] y)
        { a = Conv(x, first) r = Relu(a) y = Conv(r, last) }"""
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights["last"] *= np.exp2(np.arange(16) % 8 - 4).astype(np.float32)[None, :, None, None]
    return from_text(text, **weights)


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]


@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS", "A8W8"])
def test_the_first_line_of_a_broken_result_says_so_and_names_a_tensor(preset: str) -> None:
    result = quantry.quantize(spread_channels(), samples(), preset, store=None)
    assert result.guard is not None
    assert result.guard.is_broken
    assert result.guard.tensor in {"a", "r", "s", "y"}
    assert str(result.notes[0]).startswith("WARNING")
    assert repr(result.guard.tensor) in str(result.notes[0])


@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS", "CPU_INT8", "U16S8_AAWS", "RECOMMENDED-NPU"])
def test_a_sound_result_has_no_warning(preset: str) -> None:
    result = quantry.quantize(even_channels(), samples(), preset, store=None)
    assert result.guard is not None
    assert not result.guard.is_broken
    assert not any(str(note).startswith("WARNING") for note in result.notes)


def test_the_guard_can_be_switched_off() -> None:
    recipe = replace(PRESETS["XINT8"].recipe, evaluate=EvaluateOptions(guard=0))
    result = quantry.quantize(spread_channels(), samples(), recipe, store=None)
    assert result.guard is None
    assert not any(str(note).startswith("WARNING") for note in result.notes)


def test_a_recipe_runs_as_it_is() -> None:
    result = quantry.quantize(even_channels(), samples(), "RECOMMENDED-NPU", store=None)
    assert replace(result.recipe, name="") == replace(PRESETS["RECOMMENDED-NPU"].recipe, name="")
    computed = [entry.stage for entry in result.trace.entries if entry.outcome == "computed"]
    # Nothing is tried: each stage runs once, but for the float passes, whose models differ.
    assert len(set(computed)) == len([stage for stage in computed if stage != "observe"]) + 1
    assert computed.count("observe") <= 4


def test_a_report_survives_the_store() -> None:
    notes = (Note.of("WARNING: {sqnr:.1f} dB", NoteKind.BROKEN, sqnr=1.0),)
    report = GuardReport(-np.inf, 20.5, "t", notes)
    found = GuardReport.from_blob(report.to_blob())
    assert (found.sqnr, found.expected, found.tensor, found.notes) == (-np.inf, 20.5, "t", notes)
