"""What later stages ask of the float pass beyond the statistics that every tensor gets."""

from dataclasses import dataclass

from quantry.errors import InternalError


@dataclass(frozen=True)
class Needs:
    """Requests that cost extra and are therefore made by name.

    Attributes:
        channel_extrema: Pairs of tensor name and axis: smallest and largest value of each channel along that axis.
            Axes may be negative. One axis for each tensor; order and repetition make no difference.
    """

    channel_extrema: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        pairs = {(str(name), int(axis)) for name, axis in self.channel_extrema}
        object.__setattr__(self, "channel_extrema", tuple(sorted(pairs)))
        if len({name for name, _ in pairs}) < len(pairs):
            raise InternalError(
                f"channel extrema are kept along one axis of a tensor, got {self.channel_extrema}; Needs"
            )


NO_NEEDS = Needs()
"""Nothing beyond what every tensor gets."""
