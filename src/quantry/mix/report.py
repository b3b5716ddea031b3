"""Tells which layers changed, and why."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quantry.mix.groups import Group
from quantry.mix.judge import Verdict
from quantry.recipe import LayerTarget, MixedPrecision, WithinError

_NAMED = 12


def notes_of(
    groups: Sequence[Group],
    noise: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.int64],
    options: MixedPrecision,
    verdict: Verdict | None,
) -> tuple[str, ...]:
    """Return what the user should know of a mixture.

    Args:
        groups: What may change.
        noise: Error by group and choice.
        chosen: The choices.
        options: What was asked for.
        verdict: What the mixture is worth, where that was asked for.
    """
    what = "tensors" if options.apart else "layers"
    rows = np.arange(len(groups))
    total, left = float(noise[:, 0].sum()), float(noise[rows, chosen].sum())
    notes = [
        f"mixed precision: {int((chosen == index).sum())} of {len(groups)} {what} that may change have {_text(target)}"
        for index, target in enumerate(options.targets, start=1)
    ]
    notes[0] += f"; the error that {what} cause goes from {total:.3g} to {left:.3g} of the outputs' power"
    if verdict is not None:
        notes.insert(0 if not verdict.accepted else len(notes), _verdict_text(verdict, options, what))
    changed = [index for index in np.argsort(-np.abs(noise[rows, chosen] - noise[:, 0])) if chosen[index]]
    if changed:
        named = [
            f"{groups[index].name} ({noise[index, 0]:.2g} to {noise[index, chosen[index]]:.2g})" for index in changed
        ]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        notes.append(f"mixed precision: error of the {what} that changed: {', '.join(named[:_NAMED])}{more}")
    return tuple(notes)


def _verdict_text(verdict: Verdict, options: MixedPrecision, what: str) -> str:
    limit = options.goal.limit if hasattr(options.goal, "limit") else float("nan")
    name = options.goal.metric if isinstance(options.goal, WithinError) else "drop of the score"
    if verdict.accepted:
        return f"mixed precision: {name} {verdict.value:.6g}, limit {limit:.6g}"
    return (
        f"mixed precision misses its goal: {name} is {verdict.value:.6g}, limit {limit:.6g}, with all {what} in the "
        "finer types; finer types yet, or another limit, may reach it"
    )


def _text(target: LayerTarget) -> str:
    parts = (
        f"{target.activation.dtype.value} activations" if target.activation is not None else "",
        f"{target.weight.dtype.value} weights" if target.weight is not None else "",
    )
    return " and ".join(part for part in parts if part)
