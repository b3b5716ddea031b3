"""Things that belong together: sets that are joined step by step (union-find)."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class Joined(Generic[Thing]):
    """Sets of things; a thing that was never joined is a set of its own.

    Example:
        ::

            joined = Joined()
            joined.join(["a", "b"])
            joined.root("b") == joined.root("a")
    """

    def __init__(self) -> None:
        self._parents: dict[Thing, Thing] = {}

    def __iter__(self) -> Iterator[Thing]:
        """Return all things that were added or joined, in order."""
        return iter(list(self._parents))

    def add(self, member: Thing) -> None:
        """Remember a thing."""
        self._parents.setdefault(member, member)

    def join(self, members: Iterable[Thing]) -> None:
        """Make one set of the sets of these things; its root is that of the first."""
        first: Thing | None = None
        for member in members:
            root = self.root(member)
            if first is None:
                first = root
            else:
                self._parents[root] = first

    def root(self, member: Thing) -> Thing:
        """Return the thing that stands for the set of a thing."""
        self.add(member)
        while self._parents[member] != member:
            self._parents[member] = self._parents[self._parents[member]]
            member = self._parents[member]
        return member
