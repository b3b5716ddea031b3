"""When observers and batch statistics come to rest."""

from dataclasses import dataclass

from torch import nn

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked
from quantry.torchfront.switches import freeze_batch_norm, freeze_observers, start_observers


@dataclass(frozen=True)
class QatSchedule(Checked):
    """Switches by step, for a loop of the user's own.

    Attributes:
        observe_until: Scales follow the data before this step; 0 never lets them.
        batch_norm_until: Batch statistics are used and updated before this step; 0 never, None always.

    Example:
        >>> schedule = QatSchedule(observe_until=200, batch_norm_until=1000)
        >>> for step, (images, labels) in enumerate(loader):  # doctest: +SKIP
        ...     schedule.apply(model, step)
    """

    observe_until: int = 0
    batch_norm_until: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("observe_until", "batch_norm_until"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise RecipeError(f"QatSchedule.{name} must not be negative, got {value!r}")

    def apply(self, model: nn.Module, step: int) -> None:
        """Set the switches for a step; calling it at every step costs next to nothing."""
        if step in (0, self.observe_until):
            (start_observers if step < self.observe_until else freeze_observers)(model)
        if step in (0, self.batch_norm_until):
            frozen = self.batch_norm_until is not None and step >= self.batch_norm_until
            freeze_batch_norm(model, frozen=frozen)
