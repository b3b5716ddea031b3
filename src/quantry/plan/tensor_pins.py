"""The user's entries for single tensors."""

from collections.abc import Iterable, Sequence

from quantry.errors import SelectionError
from quantry.plan.name_pattern import meant, name_pattern
from quantry.recipe import TensorSpec, TensorTypes


class TensorPins:
    """Answers what the user wants of a tensor by name, and knows which entries were never asked for."""

    def __init__(self, entries: Sequence[TensorTypes]) -> None:
        self._wanted = [
            (name, entry.spec, f"plan.tensors[{index}].match")
            for index, entry in enumerate(entries)
            for name in entry.match
        ]
        self._patterns = [name_pattern(name, where) for name, _, where in self._wanted]
        self._used = [False] * len(self._wanted)

    def spec(self, tensor: str) -> TensorSpec | None:
        """Return what a quantized tensor becomes by the last entry that names it, or None where none does."""
        found = None
        for index, (pattern, (_, spec, _)) in enumerate(zip(self._patterns, self._wanted, strict=True)):
            if pattern(tensor):
                self._used[index] = True
                found = spec
        return found

    def check_all_used(self, quantized: Iterable[str]) -> None:
        """Refuse entries that named nothing.

        Args:
            quantized: Names of all quantized tensors, for the nearest spelling.

        Raises:
            SelectionError: An entry matched no tensor that is quantized.
        """
        for (name, _, where), used in zip(self._wanted, self._used, strict=True):
            if not used:
                known = list(quantized)
                raise SelectionError(
                    f"{where} must name quantized tensors, got {name!r}, which is none of {len(known)}"
                    f"{meant(name, known)}"
                )
