"""Single changes that improved a recipe, tried together."""

from collections.abc import Iterator, Mapping, Sequence

from quantry.autosearch.parameter import Parameter
from quantry.autosearch.space import Assignment, Space
from quantry.autosearch.trial import Trial


def combined_improvements(space: Space, trials: Sequence[Trial]) -> Iterator[Assignment]:
    """Yield the changes that improved the first assignment of a space, added one after another, best first.

    Each parameter contributes its best value. Whether two improvements add up is what the trials show.

    Args:
        space: The space; the first entry of ``Space.first`` is what changes are compared with.
        trials: Finished trials of the space.
    """
    start = space.first[0]
    known = next((trial.drop for trial in trials if trial.assignment == start and trial.drop is not None), None)
    if known is None:
        return
    best: dict[str, Trial] = {}
    for trial in trials:
        changed = _changed(trial.assignment, start, space.parameters)
        if len(changed) == 1 and _drop(trial) < min(known, _drop(best.get(next(iter(changed))))):
            best[changed.pop()] = trial
    together = dict(start)
    for place, (name, trial) in enumerate(sorted(best.items(), key=lambda entry: _drop(entry[1]))):
        own = [name, *(other for other in space.parameters if _parent(space.parameters, other) == name)]
        together |= {part: trial.assignment[part] for part in own if part in trial.assignment}
        if place:
            yield dict(together)


def _drop(trial: Trial | None) -> float:
    return float("inf") if trial is None or trial.drop is None else trial.drop


def _changed(assignment: Assignment, start: Assignment, parameters: Mapping[str, Parameter]) -> set[str]:
    """Return which parameters differ; those that depend on another count as that one."""
    names = {*assignment, *start}
    return {_parent(parameters, name) for name in names if assignment.get(name) != start.get(name)}


def _parent(parameters: Mapping[str, Parameter], name: str) -> str:
    """Return the parameter that another one depends on, itself included; a choice that all share does not count."""
    owners = [owner for owner in parameters[name].only_if if parameters[owner].only_if]
    return _parent(parameters, owners[0]) if owners else name
