"""One node with its inputs, for comparing an operator in torch with onnxruntime."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx.defs

OPSETS = range(13, 22)
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass(frozen=True, eq=False)
class Case:
    """One node: its inputs, None for an absent one, and its attributes."""

    operator: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    since: int = 13
    until: int = 21

    def versions(self) -> Iterator[int]:
        """Yield one opset for each version of the operator that takes these inputs and attributes."""
        seen = set()
        for opset in OPSETS:
            try:
                schema = onnx.defs.get_schema(self.operator, opset)
            except onnx.defs.SchemaError:
                continue
            known = set(self.attributes) <= set(schema.attributes) and len(self.inputs) <= schema.max_input
            if known and self.since <= opset <= self.until and schema.since_version not in seen:
                seen.add(schema.since_version)
                yield opset


IMAGE, LINE, VOLUME = floats(2, 4, 7, 6), floats(2, 4, 9), floats(1, 4, 5, 4, 6)
POSITIVE = np.abs(IMAGE) + np.float32(0.1)
ROW = floats(4, 1, 6)
