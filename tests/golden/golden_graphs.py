"""Every tiny model under three presets, as text."""

from pathlib import Path

from golden_models import MODELS, samples
from golden_text import describe

from quantry import quantize

FOLDER = Path(__file__).with_name("graphs")
PRESETS = ("XINT8", "S8S8_AAWS", "CPU_INT8")


def golden_file(model: str, preset: str) -> Path:
    """Return where the text of one model under one preset is kept."""
    return FOLDER / f"{model}.{preset}.txt"


def graph_text(model: str, preset: str) -> str:
    """Quantize one model and describe the result."""
    proto = MODELS[model]()
    return describe(quantize(proto, samples(proto), preset, store=None))


def write_graphs() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for model in MODELS:
        for preset in PRESETS:
            golden_file(model, preset).write_text(graph_text(model, preset), encoding="utf-8")
