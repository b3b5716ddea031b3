"""The HTML report of a search: all trials, the best one, and the effect of each parameter."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape

from quantry.autosearch import SearchResult, Trial, by_drop
from quantry.recipe import brief, to_yaml
from quantry.report.html import bullets, cards, document, section, table

_ROUNDING = 1e-12


def render_search_page(result: SearchResult, title: str) -> str:
    """Return the page.

    Args:
        result: The result of `quantry.search`.
        title: The heading, usually the model's file name.
    """
    best = result.best
    winner = "" if best is None else f"<p>{_assignment(best)}</p><pre>{escape(to_yaml(best.recipe))}</pre>"
    sections = (
        cards(_boxes(result)),
        section("Every trial", trial_chart(result) + _trials(result)),
        section("What mattered", _parameters(result)),
        section("The best configuration", winner or "<p>No trial could be evaluated.</p>"),
        section("Failed trials", _failures(result.trials)) if any(one.error for one in result.trials) else "",
        section("Notes", bullets(result.notes)) if result.notes else "",
    )
    below = f"search of {len(result.trials)} configurations; it stopped: {escape(result.stopped_by)}"
    return document(f"{title}, search", title, below, "".join(sections))


def _boxes(result: SearchResult) -> Iterator[tuple[str, str]]:
    best = result.best
    if best is not None and best.score is not None:
        interval = f", 95 % within {_interval(best.interval)}" if best.interval else ""
        yield f"best {best.score:.4g}", f"trial {best.number}{interval}"
        yield f"drop {_drop(best.drop or 0.0, result)}", f"from the float model's {result.reference.value:.4g}"
    within = (
        "no tolerance was given" if result.tolerance is None else f"within {result.tolerance:.4g} of the float model"
    )
    yield f"{len(result.candidates)} of {len(result.trials)} accepted", within
    yield _duration(result.seconds), "for the whole search"
    computed = sum(len(trial.computed) for trial in result.trials)
    reused = sum(len(trial.reused) for trial in result.trials)
    if computed + reused:
        yield f"{100 * reused / (computed + reused):.0f} % reused", f"{reused} of {computed + reused} stages"
    if result.evaluation_share is not None:
        yield f"{100 * result.evaluation_share:.0f} % evaluated", "of the samples of evaluating every trial in full"


def _trials(result: SearchResult) -> str:
    order = by_drop(result.trials)
    extra = [name for name in (order[0].objectives if order else ()) if name != "accuracy"]
    shown = any(trial.interval for trial in order)
    intervals = ("95 % interval",) if shown else ()
    rows = (
        (
            _assignment(trial),
            str(trial.number),
            trial.state if trial.score is None else f"{'~' if trial.state == 'pruned' else ''}{trial.score:.5g}",
            *((_interval(trial.interval),) if shown else ()),
            "" if trial.drop is None else _drop(trial.drop, result),
            "yes" if trial.accepted else "",
            *(f"{trial.objectives[name]:.4g}" if name in trial.objectives else "" for name in extra),
            f"{trial.seconds:.1f}",
            escape(" ".join(trial.computed) or "nothing")
            + ("" if trial.same_as is None else f", same model as trial {trial.same_as}"),
        )
        for trial in order
    )
    headings = ("configuration", "trial", "score", *intervals, "drop", "accepted", *extra, "seconds", "computed")
    hint = (
        "<p>Smallest drop first; <i>~</i> marks the estimated score of a trial that was pruned because it was unlikely "
        "to win. <label>Show only <input id=filter placeholder='part of a configuration'></label></p>"
    )
    return hint + table(headings, rows, identity="main")


def _parameters(result: SearchResult) -> str:
    """Show the mean and the smallest drop of the trials with each value of each parameter."""
    drops: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in result.trials:
        for name, value in trial.assignment.items():
            if trial.drop is not None and math.isfinite(trial.drop):
                drops[name][brief(value)].append(trial.drop)
    varied = {name: values for name, values in drops.items() if len(values) > 1}
    if not varied:
        return "<p>All trials with a score have the same values.</p>"
    rows = (
        (
            f"<code>{escape(name)}</code>" if first else "",
            f"<code>{escape(value)}</code>",
            str(len(found)),
            _drop(sum(found) / len(found), result),
            _drop(min(found), result),
        )
        for name, values in varied.items()
        for first, (value, found) in _first(sorted(values.items(), key=lambda entry: sum(entry[1]) / len(entry[1])))
    )
    hint = "<p>Drop from the float model over all trials with that value; the best value of each parameter first.</p>"
    return hint + table(("parameter", "value", "trials", "mean drop", "smallest drop"), rows)


def _first(entries: list[tuple[str, list[float]]]) -> Iterator[tuple[bool, tuple[str, list[float]]]]:
    return ((index == 0, entry) for index, entry in enumerate(entries))


def _failures(trials: Sequence[Trial]) -> str:
    return "".join(
        f"<details><summary>trial {trial.number}: {_assignment(trial)}</summary>"
        f"<pre>{escape(trial.error)}</pre></details>"
        for trial in trials
        if trial.error
    )


def _assignment(trial: Trial) -> str:
    parts = (f"{escape(name)}=<code>{escape(brief(value))}</code>" for name, value in trial.assignment.items())
    return ", ".join(parts) or f"<code>{escape(trial.recipe.name)}</code>"


def _drop(drop: float, result: SearchResult) -> str:
    """Return a drop as text; differences that only come from another order of summation are shown as 0."""
    reference = abs(result.reference.value)
    return "0" if math.isfinite(reference) and abs(drop) < _ROUNDING * reference else f"{drop:.4g}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


_CHART_WIDTH, _CHART_HEIGHT, _CHART_LEFT, _CHART_TOP, _CHART_BOTTOM = 960, 270, 60, 22, 24


def trial_chart(result: SearchResult) -> str:
    """Return an SVG with one dot per trial, and lines for the float model's score and the tolerance."""
    scored = [trial for trial in result.trials if trial.score is not None]
    if not scored:
        return ""
    levels = {"float": result.reference.value}
    if result.tolerance is not None:
        sign = -1 if result.direction == "maximize" else 1
        levels["tolerance"] = result.reference.value + sign * result.tolerance
    scores = [trial.score for trial in scored if trial.score is not None]
    low, high = min(*scores, *levels.values()), max(*scores, *levels.values())
    span = (high - low) or 1.0

    def across(number: int) -> float:
        return _CHART_LEFT + (_CHART_WIDTH - _CHART_LEFT - 8) * (number + 0.5) / len(result.trials)

    def down(value: float) -> float:
        return _CHART_TOP + (_CHART_HEIGHT - _CHART_BOTTOM - _CHART_TOP) * (1 - (value - low) / span)

    lines = "".join(
        f"<line class=end x1={_CHART_LEFT} x2={_CHART_WIDTH} y1={down(value):.1f} y2={down(value):.1f} />"
        f"<text class=axis x={_CHART_WIDTH} y={down(value) - 4:.1f} text-anchor=end>{name} {value:.4g}</text>"
        for name, value in levels.items()
    )
    ends = "".join(
        f"<text class=axis x={_CHART_LEFT - 6} y={down(value) + 4:.1f} text-anchor=end>{value:.4g}</text>"
        for value in (low, high)
    )
    dots = "".join(_dot(trial, across(trial.number), down(trial.score or 0.0), result) for trial in scored)
    return (
        f'<svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role=img aria-label="score of every trial">'
        f"{ends}{lines}{dots}"
        f"<text class=axis x={_CHART_LEFT} y={_CHART_HEIGHT - 6}>first trial</text>"
        f"<text class=axis x={_CHART_WIDTH} y={_CHART_HEIGHT - 6} text-anchor=end>last</text></svg>"
    )


def _dot(trial: Trial, x: float, y: float, result: SearchResult) -> str:
    kind = "pruned" if trial.state == "pruned" else "accepted" if trial.accepted else "trial"
    best = result.best is not None and trial.number == result.best.number
    radius = 7 if best else 4
    label = f"trial {trial.number}: {trial.score:.5g}{', best' if best else ''}"
    return f"<circle class={kind} cx={x:.1f} cy={y:.1f} r={radius}><title>{label}</title></circle>"
