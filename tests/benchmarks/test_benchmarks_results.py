import pytest
from benchmarks.accuracy import __main__ as accuracy
from benchmarks.bench import select
from benchmarks.bench_check import compare
from benchmarks.markdown import replace_section, table
from benchmarks.publish import with_published_scores
from benchmarks.result_file import ResultFile
from benchmarks.rows import ROWS
from benchmarks.speed_table import losses, measures_table, missed_goals, ratios_table


def _entry(median, noise=1.05, *, larger_is_better=True, reached=True):
    ratios = {
        name: {"median": median, "low": median * 0.9, "high": median * 1.1, "noise": noise}
        for name in ("seconds", "cpu_seconds", "peak_bytes")
    }
    measured = {
        "seconds": [1.0],
        "cpu_seconds": [1.0],
        "peak_bytes": [1 << 20],
        "process_seconds": [2.0],
        "facts": {},
    }
    comparison = {
        "numerator": "quark",
        "denominator": "quantry",
        "larger_is_better": larger_is_better,
        "ratios": ratios,
        "goals": [{"goal": "seconds >= 8x", "reached": reached}],
    }
    return {"sides": {"quantry": measured, "quark": {"failure": "boom"}}, "comparisons": [comparison]}


def test_check_accepts_what_noise_explains():
    assert not any(v.regressed for v in compare({"r": _entry(10, 1.2)}, {"r": _entry(8, 1.1)}))


def test_check_refuses_worse_ratio():
    assert all(v.regressed for v in compare({"r": _entry(10)}, {"r": _entry(5)}))


def test_check_knows_ratios_that_shall_be_small():
    before, now = _entry(2, larger_is_better=False), _entry(3, larger_is_better=False)
    assert all(v.regressed for v in compare({"r": before}, {"r": now}))
    assert not any(v.regressed for v in compare({"r": now}, {"r": before}))


def test_check_ignores_rows_without_stored_result():
    assert compare({}, {"r": _entry(5)}) == []


def test_tables_tell_ratios_failures_and_missed_goals():
    entries = {"r": _entry(0.5, reached=False)}
    assert "0.5x (0.45..0.55)" in ratios_table(entries)
    assert "fails: boom" in measures_table(entries)
    assert len(missed_goals(entries)) == 1
    assert "2.00x the time of quark" in losses(entries)[0]


def test_tables_tell_quality_beside_time():
    entry = _entry(2.0)
    entry["sides"]["quantry"]["facts"] = {"sqnr_db": 29.5, "note": "SQNR 29.50 dB"}
    entry["comparisons"][0]["goals"] = [
        {"goal": "sqnr_db at most 0.1 below", "reached": False, "measured": "30.00 and 29.50"}
    ]
    assert "SQNR 29.50 dB" in measures_table({"r": entry})
    assert "**NO**: sqnr_db at most 0.1 below (30.00 and 29.50)" in ratios_table({"r": entry})
    assert "(measured 30.00 and 29.50)" in missed_goals({"r": entry})[0]


def test_finetuning_is_held_to_time_quality_and_memory():
    rows = [row for row in ROWS if row.name.startswith("tune/")]
    assert len(rows) == 4
    for row in rows:
        goals = {(c.numerator, c.denominator): {goal.measure for goal in c.goals} for c in row.comparisons}
        for ours in ("quantry", "quantry, no early stop", "quantry with GPTQ"):
            assert goals["quark", ours] == {"seconds", "sqnr_db"}
            assert goals[ours, "plain inference"] == {"peak_bytes"}
        assert all(side.evaluate for side in row.sides if side.label != "plain inference")


def test_replace_section_changes_only_what_is_between_the_marks():
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb"
    assert replace_section(text, "x", "new") == "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb"
    with pytest.raises(ValueError, match="marks"):
        replace_section("nothing", "x", "new")


def test_table_escapes_column_marks():
    assert table(("a",), [("x|y",)]).splitlines()[2] == "| x\\|y |"


def test_result_file_keeps_finished_entries(tmp_path):
    store = ResultFile(tmp_path / "r.json")
    store.start("first", fresh=True)
    store.put("a", {"date": "2026"})
    store.start("second", fresh=False)
    content = store.read()
    assert content["entries"] == {"a": {"date": "2026"}}
    assert content["command"] == "second"
    assert content["machine"]["cpus"] >= 1


def test_rows_have_distinct_names():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_select_by_beginning_of_name():
    assert {row.name for row in select(ROWS, ["import"], quick=True)} == {"import"}
    with pytest.raises(SystemExit, match="no row begins"):
        select(ROWS, ["nothing"], quick=False)


def test_a_run_of_some_contestants_leaves_published_scores_of_others():
    published = {"command": "all", "entries": {"a": {"scores": {"float": 1, "peer": 2}}, "b": {"scores": {"peer": 3}}}}
    measured = {"command": "some", "entries": {"a": {"scores": {"float": 4, "auto": 5}}}}
    merged = with_published_scores(measured, published)
    assert merged["command"] == "some"
    assert merged["entries"] == {
        "a": {"scores": {"float": 4, "peer": 2, "auto": 5}},
        "b": {"scores": {"peer": 3}},
    }


@pytest.mark.parametrize("part", [["--quick"], ["--limit", "10"]])
def test_a_run_of_some_samples_is_not_published(part, capsys):
    with pytest.raises(SystemExit):
        accuracy.main([*part, "--publish"])
    assert "--publish needs all samples" in capsys.readouterr().err
