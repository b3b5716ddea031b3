"""A model of the shared data whose quantized form is evaluated on held-out samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.measure import measure
from benchmarks.locations import cache
from benchmarks.workloads.shared_model import SharedModel


@dataclass(frozen=True)
class EvaluatedModel:
    """A float model with calibration samples, held-out samples, and a place for the model that a side writes.

    Attributes:
        source: Float model and calibration samples.
        name: File name of the model that the side writes.
        held_out: Number of held-out samples.
        every: Take every n-th of them, so that all classes of a sorted set are included.
    """

    source: SharedModel
    name: str
    held_out: int
    every: int = 1

    def make(self) -> Mapping[str, Any]:
        """Prepare the samples, once, in a separate process: the scripts of the data change ``sys.path``."""
        made = self.source.make()
        folder = cache() / "samples" / f"{self.source.suite}-held-out-{self.held_out}-every-{self.every}"
        arguments = {
            "suite": self.source.suite,
            "folder": str(folder),
            "count": self.held_out,
            "every": self.every,
        }
        count = measure("benchmarks.tasks.suite:prepare_held_out", arguments).facts["count"]
        output = cache() / "quantized" / self.name
        output.parent.mkdir(parents=True, exist_ok=True)
        return {**made, "output": str(output), "held_out": str(folder), "held_out_count": count}

    def discard(self) -> None:
        """Remove the written model and its external weights."""
        for file in (cache() / "quantized").glob(f"{self.name}*"):
            file.unlink()
