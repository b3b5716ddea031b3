"""A model that one of the tools has quantized, for measuring how fast it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.measure import measure
from benchmarks.harness.row import Workload
from benchmarks.locations import cache


@dataclass(frozen=True)
class QuantizedModel:
    """The result of a quantizing task; made again each time, because the tool may have changed.

    Attributes:
        name: File name of the model.
        task: The task that writes it to its argument ``output``.
        arguments: Further arguments of the task.
        source: Float model and calibration samples.
        peer: Run the task in the peer's environment.
    """

    name: str
    task: str
    source: Workload
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peer: bool = False

    def make(self) -> Mapping[str, Any]:
        """Quantize the model."""
        made = dict(self.source.make())
        output = cache() / "quantized" / self.name
        output.parent.mkdir(parents=True, exist_ok=True)
        measure(self.task, {**made, **self.arguments, "output": str(output)}, peer=self.peer)
        return {**made, "model": str(output)}

    def discard(self) -> None:
        """Remove the model."""
        (cache() / "quantized" / self.name).unlink(missing_ok=True)
