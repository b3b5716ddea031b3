"""A model of the shared data with some of its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.measure import measure
from benchmarks.locations import cache, shared


@dataclass(frozen=True)
class SharedModel:
    """A float model with samples.

    Attributes:
        suite: Name of one of the accuracy suites.
        samples: Number of samples for measuring time and memory, calibration samples first; None gives exactly the
            calibration samples.
    """

    suite: str
    samples: int | None = None

    def make(self) -> Mapping[str, Any]:
        """Prepare the samples, once, in a separate process: the scripts of the data change ``sys.path``."""
        shared(self.suite)
        folder = cache() / "samples" / f"{self.suite}-{self.samples or 'calibration'}"
        arguments = {"suite": self.suite, "folder": str(folder), "count": self.samples}
        facts = measure("benchmarks.tasks.suite:prepare", arguments).facts
        return {"model": facts["model"], "samples": str(folder), "count": facts["count"]}

    def discard(self) -> None:
        """Keep everything: it is small and the same every time."""
