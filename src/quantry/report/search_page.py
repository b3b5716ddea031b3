"""The HTML report of one or several searches: trials, Pareto front, parameters, and the difference of recipes."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from quantry.autosearch import SearchResult, cells, trial_texts
from quantry.evaluate import score_text, score_texts
from quantry.recipe import to_yaml
from quantry.report.facts import Plain
from quantry.report.html import bullets, cards, chart, document, filter_box, hint, summary, table
from quantry.report.search_facts import SearchFacts, facts_of_result

_NEARLY_ALL = 0.995

# Drops, as shares of the float model's score, up to which a model without tolerance counts as good, or as usable.
_SMALL_DROP, _LARGE_DROP = 0.01, 0.05

# Scores of this size are written with four decimals, also small ones next to them.
_USUAL = 0.01, 1e3


def render_search_page(result: SearchResult, title: str) -> str:
    """Return the page of a finished search.

    Args:
        result: The result of `quantry.search`.
        title: The heading, usually the model's file name.
    """
    recipe = None if result.best is None else result.best.recipe
    return render_search_facts((facts_of_result(result, title),), None if recipe is None else to_yaml(recipe))


def render_search_facts(searches: Sequence[SearchFacts], best_recipe: str | None) -> str:
    """Return the page of searches, running or finished; the first is shown in full, the others are compared with it.

    Args:
        searches: At least one.
        best_recipe: The best recipe of the first as YAML.
    """
    first = searches[0]
    heading = " and ".join(dict.fromkeys(search.title for search in searches))
    sections = (
        ("", _summary(first) + cards(_boxes(first))),
        ("Searches compared", _compared(searches) if len(searches) > 1 else ""),
        ("Accuracy and cost", _charts(first)),
        ("What mattered", _parameters(first)),
        ("Every trial", _trials(first)),
        ("Differences between recipes", _recipe_diff(first)),
        ("The best configuration", _winner(first, best_recipe)),
        ("Failed trials", _failures(first.trials)),
        ("Notes", bullets(first.notes) if first.notes else ""),
    )
    return document("search", heading, below(first), sections, {"searches": [search.for_page() for search in searches]})


def below(search: SearchFacts) -> str:
    """Return the line below the heading, as HTML."""
    state = "running" if search.stopped_by is None else f"stopped: {search.stopped_by}"
    return f"search of {len(search.trials)} configurations by {escape(search.metric)}; {escape(state)}"


def _summary(search: SearchFacts) -> str:
    """Return whether the best model is good, where it is, and what to do next."""
    best = search.winner
    if best is None or best["score"] is None or search.float_score is None:
        if search.stopped_by is None:
            return ""
        return summary("bad", "No trial could be evaluated", "the failed trials below say why", [])
    drop = best["drop"] or 0.0
    best_score, float_score = _score_of(best["score"], search), _score_of(search.float_score, search)
    evidence = f"its {search.metric} is {best_score}; the float model has {float_score}"
    level, words = _level(drop, search)
    if search.stopped_by is None:
        words = f"So far, {words[:1].lower()}{words[1:]}"
    files = "<code>best.onnx</code>, its recipe in <code>recipe.yaml</code>, both in the folder of the search"
    rows = [("Best", f"trial {best['number']}: {_assignment(best)}"), ("Model", files), ("Next", _next(search, level))]
    return summary(level, words, evidence, rows)


def _level(drop: float, search: SearchFacts) -> tuple[str, str]:
    """Return how good the best trial is: its level, and the same in words."""
    if drop <= 0:
        return "good", "The best model is as good as the float model"
    if search.tolerance is not None:
        within = drop <= search.tolerance
        return (
            ("good", "The best model is within the tolerance")
            if within
            else ("bad", "No trial is within the tolerance")
        )
    reference = abs(search.float_score or 0.0)
    if reference == 0 or not math.isfinite(reference):
        # A distance from the float model, whose size alone says neither good nor bad.
        return "", f"The best of {len(search.trials)} trials by {search.metric}"
    share = drop / reference
    if share <= _SMALL_DROP:
        return "good", "The best model is nearly as good as the float model"
    words = "The best model is worse than the float model"
    if search.direction == "maximize" and share < 1:
        words = f"The best model keeps {100 * (1 - share):.1f} % of the float model's {search.metric}"
    return ("fair" if share <= _LARGE_DROP else "bad"), words


def _next(search: SearchFacts, level: str) -> str:
    """Return the step that helps most after this search, as HTML."""
    if search.stopped_by is None:
        return "Wait, or stop the search: the best model so far is in its folder at any time"
    model = escape(search.model or "model.onnx")
    if not level:
        return "Confirm it with labels: <code>quantry evaluate best.onnx --data images/ --labels labels.csv</code>"
    compare = f"<code>quantry compare {model} best.onnx --data images/ --latency 50</code>"
    if level == "good":
        return f"Check its speed and outputs: {compare}"
    if search.is_limited:
        return "Run the same command with a larger <code>--budget</code>: it continues where it stopped"
    return (
        "Search the default space, which starts with the recommended recipes: "
        f"<code>quantry search {model} --data images/ --labels labels.csv</code>"
    )


def _boxes(search: SearchFacts) -> Iterator[tuple[str, str]]:
    best = search.winner
    if best is not None and best["score"] is not None:
        _, interval = score_texts(best["score"], best["interval"])
        interval = f", 95 % interval {interval}" if interval else ""
        yield f"{search.metric} {_score_of(best['score'], search)}", f"best: trial {best['number']}{interval}"
        if search.float_score is not None:
            than = f"than the float model's {_score_of(search.float_score, search)}"
            yield _change(best["drop"] or 0.0, search), than
    accepted = sum(bool(trial["accepted"]) for trial in search.trials)
    if search.tolerance is None:
        yield f"{len(search.trials)} trials", "compared; no tolerance was given"
    else:
        within = f"within {search.tolerance:.4g} of the float model"
        yield f"{accepted} of {len(search.trials)} accepted", within
    yield _duration(search.seconds), "for the whole search" if search.stopped_by is not None else "so far"
    computed = sum(len(trial["computed"]) for trial in search.trials)
    reused = sum(len(trial["reused"]) for trial in search.trials)
    if computed + reused:
        share = f"{100 * reused / (computed + reused):.0f} % reused"
        yield share, f"{reused} of {computed + reused} steps had been computed for an earlier trial"
    if search.evaluation_share is not None and search.evaluation_share < _NEARLY_ALL:
        share = f"{100 * search.evaluation_share:.0f} % evaluated"
        yield share, "of all samples; trials that were unlikely to win were stopped"


def _charts(search: SearchFacts) -> str:
    axes = [name for name in search.objectives if name != "accuracy"]
    options = "".join(f"<option value={escape(name)}>{escape(name)}</option>" for name in (*axes, "time"))
    picker = f"<div class=controls><label>Against <select id=pareto-axis>{options}</select></label></div>"
    legend = (
        "One mark per trial: above is better. Click or tap a mark to find its trial in the table."
        if search.direction == "maximize"
        else "One mark per trial: below is better. Click or tap a mark to find its trial in the table."
    )
    front = " Trials on the dotted line are on the Pareto front: none is better in everything." if axes else ""
    score = escape(search.metric)
    return (
        f"<div class=pair><div><h3>{score} of every trial</h3>{hint(legend + front)}{picker}"
        f"{chart('pareto', f'{search.metric} of every trial; the table below has the same numbers')}</div>"
        f"<div><h3>Best so far</h3>{hint('How the best score improved over time.')}"
        f"{chart('best', 'best score over time')}</div></div>"
    )


def _trials(search: SearchFacts) -> str:
    order = sorted(search.trials, key=lambda trial: (trial["drop"] is None, trial["drop"] or 0.0, trial["number"]))
    columns = (
        *("trial", "configuration", "score"),
        *(("95 %",) if any(trial["interval"] for trial in order) else ()),
        "drop",
        # Without a tolerance every trial is accepted.
        *(("accepted",) if search.tolerance is not None else ()),
        *(name for name in search.objectives if name != "accuracy"),
        "seconds",
    )
    rows = (tuple(map(escape, cells(_texts(trial, search), columns))) for trial in order)
    legend = (
        "Smallest drop first; <i>~</i> marks the estimated score of a trial that was pruned because it was unlikely to "
        "win. Headings sort, by mouse or with Tab and Enter."
    )
    ids = [f"trial-{trial['number']}" for trial in order]
    return hint(legend) + filter_box("main", "Show only rows with") + table(columns, rows, identity="main", ids=ids)


def _texts(trial: Plain, search: SearchFacts) -> dict[str, str]:
    return trial_texts(trial, trial["configuration"], lambda value: _score_of(value, search))


def _score_of(value: float, search: SearchFacts) -> str:
    usual = search.float_score is not None and _USUAL[0] <= abs(search.float_score) < _USUAL[1]
    return f"{value:.4f}" if usual and abs(value) < _USUAL[1] else score_text(value)


def _parameters(search: SearchFacts) -> str:
    """Show the importance of the parameters, and the drop of the trials with each value of each parameter."""
    if not search.importance:
        return "<p>All trials with a score have the same values.</p>"
    rows = (
        (
            "" if position else f"<code>{escape(entry['parameter'])}</code>",
            f"<code>{escape(value)}</code>",
            str(len(drops)),
            _score_of(sum(drops) / len(drops), search),
            _score_of(min(drops), search),
        )
        for entry in search.importance
        for position, (value, drops) in enumerate(
            sorted(entry["values"].items(), key=lambda value: sum(value[1]) / len(value[1]))
        )
    )
    share = hint(
        "The share of the variance of the score that each parameter explains alone. Parameters that act together "
        "share their effect."
    )
    lines = hint("One line per complete trial, through its values to its score: green lines are the good ones.")
    values = hint("Drop from the float model over all trials with that value; the best value of each parameter first.")
    # Names of many values need the height.
    most = max(len(entry["values"]) for entry in search.importance)
    together = chart("parallel", "values of the parameters and score of each trial", "tall" if most > 8 else "")
    return (
        f"<h3>Importance</h3>{share}{chart('importance', 'importance of each parameter', 'low')}"
        f"<h3>Values together</h3>{lines}{together}<h3>Each value</h3>{values}"
        + table(("parameter", "value", "trials", "mean drop", "smallest drop"), rows)
    )


def _recipe_diff(search: SearchFacts) -> str:
    if not search.trials:
        return ""
    second = search.best if search.best is not None else len(search.trials) - 1
    pickers = "".join(
        f"<label>{label} <select id={identity}>{_options(search, number)}</select></label>"
        for label, identity, number in (("from", "first-recipe", 0), ("to", "second-recipe", second))
    )
    ours, theirs = search.trials[0]["recipe"], search.trials[second]["recipe"]
    rows = [
        (f"<code>{escape(path)}</code>", f"<code>{escape(search.base[path])}</code>", f"<code>{escape(value)}</code>")
        for path, value in sorted(theirs.items())
        if path not in ours
    ]
    differences = table(("field", "trial 0", f"trial {second}"), rows).replace("<table>", "<table id=recipe-diff>", 1)
    legend = hint("The fields in which the recipes of two trials differ: first the first trial and the best one.")
    return f"{legend}<div class=controls>{pickers}</div>{differences}"


def _options(search: SearchFacts, selected: int) -> str:
    return "".join(
        f"<option value={trial['number']}{' selected' if trial['number'] == selected else ''}>trial {trial['number']}: "
        f"{escape(_texts(trial, search)['score'])}</option>"
        for trial in search.trials
    )


def _compared(searches: Sequence[SearchFacts]) -> str:
    rows = []
    for number, search in enumerate(searches, 1):
        best = search.winner
        rows.append(
            (
                f"{number}: {escape(search.title)}",
                "" if best is None or best["score"] is None else _score_of(best["score"], search),
                "" if best is None or best["drop"] is None else _score_of(best["drop"], search),
                str(len(search.trials)),
                _duration(search.seconds),
                "" if best is None else _assignment(best),
                escape(search.stopped_by or "running"),
            )
        )
    headings = ("search", "best score", "drop", "trials", "time", "best configuration", "stopped by")
    legend = hint(
        "The chart of the best score over time has a line for each search. Everything else is about the first."
    )
    return legend + table(headings, rows)


def _winner(search: SearchFacts, recipe: str | None) -> str:
    best = search.winner
    if best is None or recipe is None:
        return "<p>No trial could be evaluated.</p>"
    return (
        f"<p>{_assignment(best)}</p><p>Save it as recipe.yaml and quantize with <code>quantry quantize model.onnx "
        f"--data ... --recipe recipe.yaml</code>; a search also leaves it next to best.onnx.</p>"
        f"<pre>{escape(recipe)}</pre>"
    )


def _failures(trials: Sequence[Plain]) -> str:
    return "".join(
        f"<details><summary>trial {trial['number']}: {_assignment(trial)}</summary>"
        f"<pre>{escape(trial['error'])}</pre></details>"
        for trial in trials
        if trial["error"]
    )


def _assignment(trial: Plain) -> str:
    return f"<code>{escape(trial['configuration'])}</code>"


def _change(drop: float, search: SearchFacts) -> str:
    """Return how much better or worse than the float model a score is."""
    size = _score_of(abs(drop), search)
    return f"{size} worse" if drop > 0 else f"{size} better" if float(size) else "equal"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
