"""How near the outputs of a written model are to those of the float model, on samples that nobody calibrated with."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.tasks.inference import open_session
from benchmarks.tasks.samples import SampleReader


def evaluate(
    model: str, output: str, held_out: str, held_out_count: int, threads: int = 2, **_: Any
) -> Callable[[], dict[str, Any]]:
    """Compare a written model with its float model, both in onnxruntime.

    Args:
        model: Path of the float model.
        output: Path of the model that was written.
        held_out: Folder of samples.
        held_out_count: How many of them.
        threads: Of each session.

    Returns:
        The job. It tells ``sqnr_db``, ``10 log10(sum(r**2) / sum((r - q)**2))`` over all samples and outputs.
    """
    from quantry.evaluate.metrics.metric import decibels

    reference, written = open_session(model, threads), open_session(output, threads)

    def job() -> dict[str, Any]:
        reader = SampleReader(held_out, held_out_count)
        signal = noise = 0.0
        while (sample := reader.get_next()) is not None:
            for exact, found in zip(reference.run(None, sample), written.run(None, sample), strict=True):
                signal += float(np.square(exact, dtype=np.float64).sum())
                noise += float(np.square(exact - found, dtype=np.float64).sum())
        value = decibels(signal, noise)
        return {"sqnr_db": value, "note": f"SQNR {value:.2f} dB on {held_out_count} held-out samples"}

    return job
