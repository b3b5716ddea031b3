"""A trial as a row: every table shows the same texts of it."""

from dataclasses import replace

from quantry.autosearch import Trial
from quantry.autosearch.summary import TrialSummary
from quantry.autosearch.trial_row import aligned, cells, html_table, trial_texts, trial_values
from quantry.recipe import Recipe
from quantry.recipe.json_result import plain

TRIAL = Trial(
    number=3,
    recipe=Recipe(name="XINT8"),
    assignment={"recipe": "XINT8"},
    state="complete",
    score=0.75123456,
    interval=(0.74, 0.76),
    drop=0.01,
    accepted=True,
    objectives={"accuracy": 0.75123456, "size": 1_234_567.0},
    seconds=1.25,
    computed={"scale": 0.1, "emit": 0.2},
    scores={"top5": 0.9},
)


def test_columns_of_a_complete_trial() -> None:
    columns = ("trial", "score", "95 %", "drop", "size", "accepted", "seconds", "configuration", "computed", "reused")
    expected = ("3", "0.75123", "±0.01", "0.01", "1,234.6 kB", "yes", "1.2", "XINT8", "scale emit", "nothing")
    assert cells(trial_texts(TRIAL), columns) == expected


def test_estimates_failures_and_shared_models_are_marked() -> None:
    assert trial_texts(replace(TRIAL, state="pruned"), number_text="{:.2f}".format)["score"] == "~0.75"
    assert trial_texts(replace(TRIAL, same_as=1), "smooth none")["configuration"] == (
        "smooth none (same model as trial 1)"
    )
    failed = trial_texts(TRIAL.failed("OSError: the\nlabels are gone", objectives={}, drop=None))
    assert cells(failed, ("score", "95 %", "drop", "size")) == ("failed", "", "", "")
    assert failed["configuration"] == "XINT8: OSError: the labels are gone"


def test_entry_of_search_json_gives_the_same_texts() -> None:
    assert trial_texts(plain(TrialSummary.of_trial(TRIAL, 1.0))) == trial_texts(TRIAL)


def test_values_have_a_column_per_parameter_objective_and_score() -> None:
    values = trial_values(TRIAL)
    assert (values["low"], values["size"], values["scores.top5"]) == (0.74, 1_234_567.0, 0.9)
    assert values["params.recipe"] == "XINT8"
    assert "accuracy" not in values


def test_plain_and_html_tables() -> None:
    assert aligned([("trial", "score"), ("10", "0.5")]) == ["trial  score", "10     0.5"]
    page = html_table(("a<b",), [(("1",), True), (("2",), False)])
    assert page == (
        '<table><tr><th>a&lt;b</th></tr><tr style="font-weight:bold"><td>1</td></tr><tr><td>2</td></tr></table>'
    )
