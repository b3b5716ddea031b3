"""What the observe stage returns: the statistics of every float tensor of the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from quantry.memo import Blob
from quantry.observe.statistics_blob import read_statistics, write_statistics
from quantry.observe.tensor_stats import TensorStats
from quantry.observe.tensor_table import TensorTable


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of every float32 activation of the main graph: its inputs and its nodes' outputs.

    Attributes:
        tensors: Statistics by tensor name; some are derived from others when they are first asked for.
        samples: Number of samples that were fed.
    """

    tensors: Mapping[str, TensorStats]
    samples: int

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, TensorTable):
            object.__setattr__(self, "tensors", TensorTable.of_roots(dict(self.tensors)))

    def to_blob(self) -> Blob:
        """Return the stored form: what was observed, and how the rest follows from it."""
        assert isinstance(self.tensors, TensorTable)
        return write_statistics(self.tensors, self.samples)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the statistics that ``to_blob`` stored."""
        return cls(*read_statistics(blob))
