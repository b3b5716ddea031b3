"""What later stages ask of the float pass beyond the statistics that every tensor gets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """Requests that cost extra and are therefore made by name.

    Attributes:
        channel_extrema: Pairs of tensor name and axis: smallest and largest value of each channel along that axis.
            Axes may be negative. Order and repetition make no difference.
    """

    channel_extrema: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        pairs = {(str(name), int(axis)) for name, axis in self.channel_extrema}
        object.__setattr__(self, "channel_extrema", tuple(sorted(pairs)))


NO_NEEDS = Needs()
"""Nothing beyond what every tensor gets."""
