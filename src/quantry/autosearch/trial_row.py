"""A trial as a row of named columns, from which every table, page, log and tracker takes what it shows."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from quantry.autosearch.differences import assignment_text
from quantry.autosearch.trial import Trial
from quantry.evaluate import objective_text

_BOLD = ' style="font-weight:bold"'
_LONGEST_ERROR = 160
"""Letters of an error in a table; the log and search.json have all of it."""


def trial_values(trial: Trial) -> dict[str, Any]:
    """Return a trial as a flat row of numbers and short texts, with a column per parameter, objective and named score.

    Args:
        trial: The trial.
    """
    low, high = trial.interval or (None, None)
    return {
        "number": trial.number,
        "state": trial.state,
        "score": trial.score,
        "low": low,
        "high": high,
        "drop": trial.drop,
        "accepted": trial.accepted,
        "seconds": trial.seconds,
        "recipe": trial.recipe.name,
        **{name: value for name, value in trial.objectives.items() if name != "accuracy"},
        **{f"scores.{name}": value for name, value in trial.scores.items()},
        **{f"params.{name}": _parameter(name, value) for name, value in trial.assignment.items()},
        "samples": trial.samples,
        "same_as": trial.same_as,
        "model_path": trial.model_path,
        "error": trial.error,
    }


def _parameter(name: str, value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else assignment_text({name: value}, named=False)


def trial_texts(
    trial: Trial | Mapping[str, Any],
    configuration: str | None = None,
    number_text: Callable[[float], str] = "{:.5g}".format,
) -> dict[str, str]:
    """Return a trial as texts by column; a table shows some of the columns, with the headings that are their names.

    ========================  ======================================================================================
    trial                     its number
    score                     ``~`` marks the estimate of a trial that was pruned; the state if there is none
    95 %                      half of the confidence interval of the score
    drop                      how much worse than the float model
    size, latency, ...        each objective except accuracy, with its unit
    accepted                  "yes" within the tolerance
    seconds                   how long it took
    configuration             what it tries, why it failed, and the earlier trial with the same model
    computed, reused          its stages
    ========================  ======================================================================================

    Args:
        trial: The trial, or its entry of search.json.
        configuration: What to write of the assignment; None writes all of it.
        number_text: Writes scores and drops.
    """
    values = vars(trial) if isinstance(trial, Trial) else trial
    score, interval, drop = values["score"], values["interval"], values["drop"]
    mark = "~" if values["state"] == "pruned" else ""
    tried = assignment_text(values["assignment"]) if configuration is None else configuration
    error = textwrap.shorten(values["error"] or "", _LONGEST_ERROR, placeholder=" ...")
    shared = "" if values["same_as"] is None else f" (same model as trial {values['same_as']})"
    return {
        "trial": str(values["number"]),
        "score": values["state"] if score is None else f"{mark}{number_text(score)}",
        "95 %": "" if score is None or interval is None else f"±{(interval[1] - interval[0]) / 2:.2g}",
        "drop": "" if score is None or drop is None else number_text(drop),
        **{name: objective_text(name, value) for name, value in values["objectives"].items() if name != "accuracy"},
        "accepted": "yes" if values["accepted"] else "",
        "seconds": f"{values['seconds']:.1f}",
        "configuration": f"{tried}: {error}" if error else f"{tried}{shared}",
        "computed": " ".join(values["computed"]) or "nothing",
        "reused": " ".join(values["reused"]) or "nothing",
    }


def cells(texts: Mapping[str, str], columns: Iterable[str]) -> tuple[str, ...]:
    """Return the texts of some columns; a failed trial has no objectives.

    Args:
        texts: What `trial_texts` returned.
        columns: The columns.
    """
    return tuple(texts.get(name, "") for name in columns)


def html_table(headings: Sequence[str], rows: Iterable[tuple[Sequence[str], bool]]) -> str:
    """Return a table for notebooks.

    Args:
        headings: Its headings.
        rows: Texts, and whether they are bold.
    """
    heads = "".join(f"<th>{escape(name)}</th>" for name in headings)
    lines = (
        f"<tr{_BOLD if bold else ''}>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for texts, bold in rows
    )
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table, headings included, as aligned lines of plain text.

    Args:
        rows: The rows, of equal length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
