"""What is wrong with one node of a quantized model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """One constraint that does not hold.

    Attributes:
        node: Name of the node.
        rule: The constraint, such as "shift cut".
        values: The values at fault, and those allowed.
        change: What to change.
    """

    node: str
    rule: str
    values: str
    change: str

    def __str__(self) -> str:
        return f"{self.node}: {self.rule}: {self.values}; {self.change}"
