"""How much work `auto` may do."""

from dataclasses import dataclass

from quantry.errors import RecipeError, nearest_spelling


@dataclass(frozen=True)
class Effort:
    """How much work `auto` may do beyond plain quantization.

    Attributes:
        name: Its name on the command line.
        seconds: CPU time of this process for all trials. The trials of the recommended recipe and of the plain preset
            always run; others start only if they are expected to end in time. CPU time, because it depends less on the
            load of the machine than the clock does; but no more than two cores would take, because the threads of a
            machine with many cores mostly wait for each other.
        fit: Maximum number of samples that trials calibrate and tune on.
        held_out: Maximum number of samples that trials are compared on.
        trained: Whether to try training: block reconstruction and distillation, without labels.
    """

    name: str
    seconds: float
    fit: int
    held_out: int
    trained: bool = False


# Running a model takes less time than tuning it, so more samples are compared than tuned on.
_EFFORTS = (
    Effort("low", 15.0, 16, 32),
    Effort("default", 60.0, 32, 64),
    Effort("high", 1200.0, 128, 128, trained=True),
)

EFFORTS: dict[str, Effort] = {effort.name: effort for effort in _EFFORTS}
"""Efforts by name."""


def find_effort(effort: Effort | str) -> Effort:
    """Return the effort of that name.

    Args:
        effort: An effort, or one of `EFFORTS`.

    Raises:
        RecipeError: There is no such effort.
    """
    if isinstance(effort, Effort):
        return effort
    if effort not in EFFORTS:
        raise RecipeError(
            f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}{nearest_spelling(effort, EFFORTS)}"
        )
    return EFFORTS[effort]
