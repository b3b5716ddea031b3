"""Who is told what happens in a search."""

from typing import TYPE_CHECKING, Protocol

from quantry.autosearch.trial import Trial

if TYPE_CHECKING:
    from quantry.autosearch.ledger import Ledger


class Listener(Protocol):
    """Is told what happens; keeps or shows it."""

    def opened(self, ledger: "Ledger", lines: list[str]) -> None:
        """A search begins or goes on.

        Args:
            ledger: Its state.
            lines: What it is about.
        """
        ...

    def settled(self, ledger: "Ledger", trial: Trial) -> None:
        """A trial is settled."""
        ...

    def told(self, ledger: "Ledger", line: str) -> None:
        """Something goes on that is worth a line before the next trial is settled."""
        ...

    def closed(self, ledger: "Ledger", reason: str) -> None:
        """The search ended.

        Args:
            ledger: Its state.
            reason: Why.
        """
        ...
