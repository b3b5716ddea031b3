"""``torch.export.export_for_training``, which torch 2.13 no longer has and existing scripts call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from quantry.errors import RecipeError, known_keywords
from quantry.torchfront.graph_capture import capture


@dataclass(frozen=True)
class CapturedProgram:
    """What the function returns: only `module` is used by scripts.

    Attributes:
        graph_module: The captured graph.
    """

    graph_module: fx.GraphModule

    def module(self) -> fx.GraphModule:
        """Return the captured graph."""
        return self.graph_module


@known_keywords("export_for_training")
def export_for_training(
    mod: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = "batch",
    strict: bool = False,
) -> CapturedProgram:
    """Capture a module as `quantry.torch.capture` does, under the name and with the arguments torch had.

    Args:
        mod: The module.
        args: Positional arguments of an example call.
        kwargs: Arguments by name.
        dynamic_shapes: As for `capture`; torch's default fixed all sizes, here the batch is free.
        strict: Only False: torch itself has dropped the other way.
    """
    if strict:
        raise RecipeError("export_for_training takes strict=False only: modules are captured by running them")
    return CapturedProgram(capture(mod, tuple(args), kwargs, dynamic_shapes=dynamic_shapes))


def install_export_for_training() -> None:
    """Give torch the name where it has none; where it has one, that stays."""
    if not hasattr(torch.export, "export_for_training"):
        torch.export.export_for_training = export_for_training
