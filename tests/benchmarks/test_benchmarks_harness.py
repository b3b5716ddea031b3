import math
import sys

import pytest
from benchmarks.harness import (
    Comparison,
    Failure,
    Goal,
    Measurement,
    QualityGoal,
    Row,
    Side,
    measure,
    noise,
    ratio,
    run_row,
)
from benchmarks.locations import NotAvailable


def _measurement(seconds):
    return Measurement(seconds, seconds, 1000, seconds + 1)


class FakeRun:
    """Stands for fresh processes: returns prepared seconds by task, and remembers the order."""

    def __init__(self, seconds):
        self.seconds = {task: list(values) for task, values in seconds.items()}
        self.order = []

    def __call__(self, task, arguments, *, peer, timeout):
        self.order.append(task)
        value = self.seconds[task].pop(0)
        if isinstance(value, Exception):
            raise value
        return _measurement(value)


def _row(*sides, comparisons=()):
    return Row("r", "a row", sides, comparisons)


def test_ratio_is_median_of_pairs_with_extremes():
    found = ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0])
    assert (found.median, found.low, found.high) == (3.0, 2.0, 4.0)


def test_ratio_without_pairs_is_none():
    assert ratio([], [1.0]) is None
    once = ratio([100.0], [10.0, 5.0, 10.0])
    assert once is not None
    assert (once.median, once.low, once.high) == (10.0, 10.0, 20.0)


def test_noise_is_largest_factor_between_consecutive_runs():
    assert noise([1.0, 2.0, 1.6]) == pytest.approx(2.0)
    assert noise([1.0]) is None


def test_goal_with_allowance_adds_it_to_the_bound():
    goal = Goal("peak_bytes", at_most=1.5, allowance=64.0)
    assert goal.reached(214.0, 100.0)
    assert not goal.reached(215.0, 100.0)


def test_goal_needs_exactly_one_bound():
    with pytest.raises(ValueError, match="at_most or at_least"):
        Goal("seconds")


def test_row_refuses_comparison_with_unknown_side():
    with pytest.raises(ValueError, match="'b'"):
        _row(Side("a", "x"), comparisons=(Comparison("a", "b"),))


def test_run_row_lets_sides_take_turns():
    run = FakeRun({"x": [1, 1], "y": [2, 2]})
    run_row(_row(Side("a", "x"), Side("b", "y")), 2, run=run)
    assert run.order == ["x", "y", "x", "y"]


def test_run_row_does_not_repeat_side_beyond_patience():
    run = FakeRun({"x": [1, 1, 1], "y": [100]})
    run_row(_row(Side("a", "x"), Side("b", "y")), 3, run=run)
    assert run.order == ["x", "y", "x", "x"]


def test_run_row_tells_failure_and_does_not_repeat_it():
    run = FakeRun({"x": [1, 1], "y": [Failure("out of memory")]})
    row = _row(Side("a", "x"), Side("b", "y"), comparisons=(Comparison("b", "a", (Goal("seconds", at_least=1),)),))
    result = run_row(row, 2, run=run)
    assert result["sides"]["b"] == {"failure": "out of memory"}
    assert result["sides"]["a"]["seconds"] == [1, 1]
    assert result["comparisons"][0]["ratios"] == {}
    assert result["comparisons"][0]["goals"] == []


def test_run_row_skips_side_whose_workload_is_not_available():
    class Missing:
        def make(self):
            raise NotAvailable("no data")

        def discard(self):
            pass

    result = run_row(_row(Side("a", "x", workload=Missing())), 2, run=FakeRun({}))
    assert result["sides"]["a"] == {"skipped": "no data"}


def test_run_row_computes_ratios_and_goals():
    run = FakeRun({"x": [1, 2], "y": [10, 20]})
    row = _row(Side("a", "x"), Side("b", "y"), comparisons=(Comparison("b", "a", (Goal("seconds", at_least=8),)),))
    (comparison,) = run_row(row, 2, run=run)["comparisons"]
    assert comparison["ratios"]["seconds"]["median"] == 10
    assert comparison["ratios"]["seconds"]["noise"] == pytest.approx(2)
    assert comparison["goals"] == [{"goal": "seconds >= 8x", "reached": True}]


class FakeEvaluation:
    """Stands for sides that write a model and for the evaluation after each: returns prepared qualities by side."""

    def __init__(self, qualities):
        self.qualities = dict(qualities)
        self.evaluated = []

    def __call__(self, task, arguments, *, peer, timeout):
        if task != "evaluate":
            return _measurement(1.0)
        self.evaluated.append((arguments["output"], peer))
        quality = self.qualities[arguments["output"]]
        if isinstance(quality, Exception):
            raise quality
        return Measurement(50.0, 50.0, 10**9, 51.0, {"sqnr_db": quality, "note": f"SQNR {quality} dB"})


def _evaluated_row():
    sides = tuple(
        Side(label, "tune", {"output": label}, peer=label == "quark", evaluate="evaluate")
        for label in ("quantry", "quark")
    )
    return _row(*sides, comparisons=(Comparison("quark", "quantry", (QualityGoal("sqnr_db", loss=0.1),)),))


def test_evaluation_runs_after_each_run_in_own_environment_and_is_not_measured():
    run = FakeEvaluation({"quantry": 30.0, "quark": 29.0})
    result = run_row(_evaluated_row(), 2, run=run)
    assert run.evaluated == [("quantry", False), ("quark", False)] * 2
    assert result["sides"]["quantry"]["seconds"] == [1.0, 1.0]
    assert result["sides"]["quantry"]["peak_bytes"] == [1000, 1000]
    assert result["sides"]["quark"]["facts"] == {"sqnr_db": 29.0, "note": "SQNR 29.0 dB"}


@pytest.mark.parametrize(("ours", "reached"), [(30.5, True), (29.95, True), (29.85, False)])
def test_quality_goal_allows_its_loss_and_no_more(ours, reached):
    result = run_row(_evaluated_row(), 1, run=FakeEvaluation({"quantry": ours, "quark": 30.0}))
    ((goal,),) = (comparison["goals"] for comparison in result["comparisons"])
    assert goal["reached"] is reached
    assert goal["measured"] == f"30.00 and {ours:.2f}"


def test_quality_goal_is_missed_where_a_side_could_not_be_evaluated():
    result = run_row(_evaluated_row(), 2, run=FakeEvaluation({"quantry": Failure("no such file"), "quark": 30.0}))
    assert result["sides"]["quantry"]["failure"] == "no such file"
    ((goal,),) = (comparison["goals"] for comparison in result["comparisons"])
    assert goal["reached"] is False


def test_measure_runs_task_in_fresh_process():
    done = measure("benchmarks.tasks.imports:import_module", {"name": "json"})
    assert 0 <= done.seconds < done.process_seconds
    assert done.peak_bytes > 1 << 20


def test_measure_tells_last_line_of_failing_task():
    with pytest.raises(Failure, match="No module named 'no_such_module'"):
        measure("benchmarks.tasks.imports:import_module", {"name": "no_such_module"})


def test_measure_gives_up_when_time_is_up():
    with pytest.raises(Failure, match="not finished"):
        measure("time:sleep", {"name": "x"}, timeout=0.01)


def test_worker_measures_job_without_preparation(monkeypatch):
    from benchmarks.harness import worker

    class Task:
        @staticmethod
        def build():
            return lambda: {"answer": math.pi}

    monkeypatch.setitem(sys.modules, "task_for_worker", Task)
    monkeypatch.setattr(worker.os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(worker.resource, "setrlimit", lambda *_: None)
    result = worker.run({"task": "task_for_worker:build", "arguments": {}, "threads": 1, "memory_limit": 1 << 40})
    assert result["facts"] == {"answer": math.pi}
    assert result["seconds"] >= 0


def test_missing_peer_is_a_reason_to_skip(monkeypatch):
    from benchmarks import peer_environment

    attempts = []

    def fail(*command):
        attempts.append(command)
        raise NotAvailable("no network")

    monkeypatch.setenv("QUANTRY_PEER_VENV", "/proc/nowhere")
    monkeypatch.setattr(peer_environment, "_run", fail)
    peer_environment._made.cache_clear()
    try:
        for _ in range(2):
            with pytest.raises(NotAvailable, match="no network"):
                peer_environment.peer_python()
    finally:
        peer_environment._made.cache_clear()
    assert len(attempts) == 1
