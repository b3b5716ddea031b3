"""How the help of a command shows its options: flags without a type."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


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
