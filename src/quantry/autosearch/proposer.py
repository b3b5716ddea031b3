"""Where the next configuration comes from."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from quantry.autosearch.configurations import Configuration, enumerate_configurations, first_configurations
from quantry.autosearch.cost import in_order_of_priority
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.quiet_optuna import quiet_optuna
from quantry.autosearch.samplers import KINDS, SamplerKind
from quantry.autosearch.space import Space
from quantry.autosearch.study import Proposal, StudyFile
from quantry.autosearch.suggestion import suggest
from quantry.autosearch.urgency import Urgency
from quantry.errors import RecipeError
from quantry.recipe import Recipe
from quantry.runtime.threads import one_torch_thread

LOOK_AHEAD = 4
"""A sampler that learns proposes so many trials before it hears of the first of them.

It is the same for any number of workers, so that these do not change what is proposed.
"""

_REPEATS = 20


class Proposer(Protocol):
    """Names configurations one by one; each is valid and differs from all before.

    Attributes:
        look_ahead: How many may be asked for before the outcome of the first is told; None is any number.
        recipes: What will be tried, in order, as far as that is known.
    """

    look_ahead: int | None
    recipes: Sequence[Recipe]

    def next(self, number: int, heard: int) -> Proposal | None:
        """Return the next configuration, written down in the study, or None when there is no other.

        Args:
            number: Its number.
            heard: It may depend on the outcomes of trials with lower numbers than this, and on no others.
        """
        ...


class ListProposer:
    """Configurations in a fixed order.

    Args:
        study: Where they are written down.
        configurations: All of them.
        known: What was proposed before an interruption.
        urgency: Says which is next; None takes the first that is left.
        flat: A sampler of continuous spaces learns from them.

    Attributes:
        recipes: All of them, in the order they are tried as far as that is decided.
    """

    look_ahead: int | None = None

    def __init__(
        self,
        study: StudyFile,
        configurations: Sequence[Configuration],
        known: Sequence[Recipe],
        urgency: Urgency | None = None,
        *,
        flat: bool = False,
    ) -> None:
        self._study = study
        self._urgency = urgency
        self._flat = flat
        proposed = set(known)
        self._left = [entry for entry in configurations if entry.recipe not in proposed]
        self._begun = len(known)
        self._order = [*known, *(entry.recipe for entry in self._left)]
        self.recipes: Sequence[Recipe] = self._order

    def next(self, number: int, heard: int) -> Proposal | None:
        """Return the next configuration of the list."""
        self._study.hear(heard)
        if not self._left:
            return None
        place = 0 if self._urgency is None else self._urgency.first(self._left)
        # Whoever holds the list sees the new order.
        self._order.insert(self._begun, self._order.pop(self._begun + place))
        self._begun += 1
        return self._study.add(number, self._left.pop(place), flat=self._flat)


class SampledProposer:
    """Configurations that a sampler of the study chooses.

    Invalid ones are counted and drawn again; so are repeated ones, whose known score is told to the sampler once more.
    Where a sampler gives nothing new in many draws, some are drawn at random, and then what is left of a finite space
    follows in order.

    Args:
        study: The study.
        spaces: What to draw from.
        sampler: Name of the sampler, and the start of its random numbers.
        known: What was proposed before an interruption, to its entry in the study.
        listed: All configurations, where they could be listed.
    """

    look_ahead: int | None = LOOK_AHEAD

    def __init__(
        self,
        study: StudyFile,
        spaces: Sequence[Space],
        sampler: tuple[str, int],
        known: dict[Recipe, int],
        listed: Sequence[Configuration] | None = None,
    ) -> None:
        self._study = study
        self._spaces = spaces
        self._kind = KINDS[sampler[0]]
        self._firsts = ListProposer(study, first_configurations(spaces), list(known), flat=self._kind.flat)
        self._seed = sampler[1]
        self._listed = listed
        self._entries = dict(known)
        self._rest: ListProposer | None = None
        self.recipes: Sequence[Recipe] = ()
        self.invalid: Counter[str] = Counter()
        self.repeated = 0

    def next(self, number: int, heard: int) -> Proposal | None:
        """Return what a space wants to be first, then draw until something new comes."""
        self._study.hear(heard)
        first = self._firsts.next(number, heard)
        if first is not None:
            self._entries[first.configuration.recipe] = first.entry
            return first
        if self._rest is None:
            everything = self._listed is not None and len(self._entries) >= len(self._listed)
            # A sampler that has settled on a few values proposes them again and again; chance then finds others.
            kinds = [self._kind] * _REPEATS + [KINDS["random"]] * 5 * _REPEATS
            for kind in () if everything else kinds:
                proposal = self._draw(number, kind)
                if proposal is not None:
                    return proposal
            self._rest = ListProposer(self._study, self._listed or (), list(self._entries), flat=self._kind.flat)
        return self._rest.next(number, heard)

    def _draw(self, number: int, kind: SamplerKind) -> Proposal | None:
        study = self._study.study
        drawn = self._study.draws
        # The matrices of the Gaussian process are tiny: threads that wait for each other next to busy workers take a
        # hundred times as long.
        with quiet_optuna(), one_torch_thread():
            study.sampler = kind.make(self._seed if kind.one_seed else _mixed(self._seed, drawn))
            trial = study.ask()
            space, assignment = suggest(trial, self._spaces, flat=self._kind.flat)
        try:
            recipe = self._spaces[space].build(assignment)
        except RecipeError as error:
            self.invalid[str(error)] += 1
            self._study.tell(trial.number, None)
            return None
        if recipe in self._entries:
            self.repeated += 1
            self._study.tell(trial.number, self._study.values(self._entries[recipe]))
            return None
        self._entries[recipe] = trial.number
        return self._study.adopt(number, trial, Configuration(space, assignment, recipe))


def propose(ledger: Ledger, known: Sequence[Proposal]) -> tuple[Proposer, tuple[str, ...]]:
    """Return who names configurations, and what was removed from the space before anything runs.

    Args:
        ledger: Knows the study, whose spaces are searched, the options and what trials cost.
        known: What was proposed before an interruption.

    Raises:
        RecipeError: No configuration is valid, or a grid has parameters that cannot be listed.
    """
    study, options = ledger.study, ledger.options
    spaces = study.spaces
    study.abandon_unnumbered()
    entries = {proposal.configuration.recipe: proposal.entry for proposal in known}
    finite = all(space.is_finite for space in spaces)
    if not finite and options.sampler != "grid":
        return SampledProposer(study, spaces, (options.sampler, options.seed), entries), ()
    configurations, removed = enumerate_configurations(spaces)
    if not configurations:
        raise RecipeError(f"a space must hold a valid configuration, got none; {'; '.join(removed.lines())}")
    notes = tuple(removed.lines())
    if options.sampler == "grid":
        ordered = in_order_of_priority(configurations, spaces)
        return ListProposer(study, ordered, list(entries), Urgency(ledger, list(entries))), notes
    if options.sampler == "random" and not removed.beyond:
        # A recipe that is there twice is tried once.
        order = [*first_configurations(spaces), *shuffled(configurations, options.seed)]
        return ListProposer(study, list({entry.recipe: entry for entry in order}.values()), list(entries)), notes
    listed = None if removed.beyond else configurations
    return SampledProposer(study, spaces, (options.sampler, options.seed), entries, listed), notes


def shuffled(configurations: Sequence[Configuration], seed: int) -> list[Configuration]:
    """Return the configurations in random order."""
    order = list(configurations)
    random.Random(seed).shuffle(order)  # noqa: S311 - no secret depends on it
    return order


def _mixed(seed: int, draw: int) -> int:
    return (seed * 1_000_003 + draw * 7919 + 12345) % (1 << 31)
