"""How the help of a command shows its options: flags without a type, and long lists under headings."""

import inspect
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

# Options that few users need, by their command and the heading of the help; the others come first.
_HEADINGS = {
    "quantize": {
        "Details": "evaluation_data batch dimension samples exclude evaluate latency verify store",
        "Images": "decoder",
    },
    "search": {
        "Search": "space sampler objectives racing seed calibration_samples",
        "When to stop": "n_trials n_candidates patience trial_timeout",
        "Workers": "n_jobs threads devices cluster",
        "Files": "log_path keep_models storage log_to",
    },
}


def arrange(command: str, option: inspect.Parameter, group: str = "") -> None:
    """Set how the help shows an option; the options of a group have its heading.

    Args:
        command: Name of the command.
        option: The parameter that declares the option.
        group: Heading of the group that the option is part of.
    """
    info = next((one for one in get_args(option.annotation) if isinstance(one, OptionInfo)), None)
    headings = _HEADINGS.get(command, {}).items()
    heading = next((name for name, names in headings if option.name in names.split()), group)
    if info is not None and heading:
        info.rich_help_panel = heading


def _flags_without_type(options: list[Any]) -> list[Any]:
    """Return the options of a command; a flag takes no value, so its help names no type."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


class Command(TyperCommand):
    """A command whose help names a type only where an option takes a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _flags_without_type(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands with the same help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _flags_without_type(super().get_params(ctx))
