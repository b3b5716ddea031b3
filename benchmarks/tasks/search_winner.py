"""The model that quantry's own search finds, without labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tasks.samples import SampleReader

_TRIALS = 24


def quantize(
    model: str, samples: str, count: int, recipe: str, output: str = "quantized.onnx", **_: Any
) -> Callable[[], dict[str, Any]]:
    """Time a search among the techniques that need no training; models are scored by their outputs.

    Args:
        model: Path of the float model.
        samples: Folder of samples; some of them are held out for evaluation.
        count: How many of them.
        recipe: The preset whose types the model shall have.
        output: Path of the quantized model.
    """
    import onnxruntime  # noqa: F401 - loaded before the clock starts
    import optuna  # noqa: F401

    import quantry

    def job() -> dict[str, Any]:
        reader = SampleReader(samples, count)
        data = [reader.get_next() for _ in range(count)]
        found = quantry.search(model, data, space="accuracy", recipe=recipe, n_trials=_TRIALS, output_dir="search")
        assert found.best is not None
        assert found.best_model is not None
        Path(found.best_model).replace(output)
        best = {name: str(value) for name, value in found.best.assignment.items()}
        return {"bytes": Path(output).stat().st_size, "trials": len(found.trials), "best": best}

    return job
