"""Small quantized models in every dialect, and what they compute."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir

from quantry.graph.load import read_model
from quantry.graph.save import serialize
from quantry.recipe import Format, Recipe
from quantry.runtime.sessions import run_session, simulation_session

sys.path.insert(0, str(Path(__file__).parents[1] / "emit"))

import emit_cases as cases


@cache
def source(recipe: Recipe, format_: Format, opset: int = 17) -> ir.Model:
    """Return the reference network of the emit tests in a format, as read from a file."""
    return read_model(cases.emitted(recipe, format_, opset).to_bytes())


def outputs(model: ir.Model) -> dict[str, np.ndarray]:
    """Return what the safe session computes on one sample."""
    return run_session(simulation_session(serialize(model), threads=1), cases.samples()[0])
