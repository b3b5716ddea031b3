"""The time budget of a search."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from small_network import Distance, random_samples

from quantry.autosearch import SearchOptions, Space, Trial, run_search
from quantry.autosearch.scheduler import SearchLoop
from quantry.autosearch.stop import Stop, StopKind
from quantry.autosearch.time_limit import OutOfTime, TimeLimit, interrupted_at
from quantry.recipe import Recipe


def options(path: Path, seconds: float, **others: object) -> SearchOptions:
    return SearchOptions(sampler="grid", output_dir=path, budget=seconds, **others)


class Slow(Distance):
    """Takes some time for each model, and hangs for those in `hangs`."""

    fingerprint = "slow"

    def __init__(self, model: Path, seconds: float, hangs: tuple[str, ...] = ()) -> None:
        super().__init__(model, 4)
        self.delay, self.hangs = seconds, hangs

    def per_sample(self, model_path: Path, indices: object) -> list[float]:
        time.sleep(60 if Path(model_path).stem in self.hangs else self.delay)
        return super().per_sample(model_path, indices)


def test_nothing_starts_that_would_not_finish_in_time() -> None:
    limit = TimeLimit(100.0, before=70.0)
    assert limit.refusal(25.0) is None
    assert limit.refusal(35.0) == Stop(StopKind.TIME, 100.0)
    assert limit.deadline == pytest.approx(time.monotonic() + 50, abs=5)
    assert TimeLimit(None, 5.0).refusal(1e9) is None


def test_search_ends_in_time_and_resumes_with_a_larger_budget(network: Path, space: Space, tmp_path: Path) -> None:
    evaluator = Slow(network, 0.4)
    found = run_search(network, random_samples(4), evaluator, space, options(tmp_path, 2.5))
    assert 1 <= len(found.trials) < 12
    assert found.stopped_by.kind is StopKind.TIME
    assert str(found.stopped_by).startswith("time limit of 2.5 s reached; run it again with a larger budget")
    assert found.seconds < 2.5 * 1.2 + 1
    evaluator.delay = 0.0
    more = run_search(network, random_samples(4), evaluator, space, options(tmp_path, 600))
    assert len(more.trials) == 12
    assert [trial.score for trial in more.trials[: len(found.trials)]] == [trial.score for trial in found.trials]


@pytest.mark.parametrize("others", [{}, {"n_jobs": 2}, {"racing": True}])
def test_trial_that_exceeds_the_budget_by_far_is_stopped_without_failing(
    network: Path, space: Space, tmp_path: Path, others: dict[str, object]
) -> None:
    evaluator = Slow(network, 0.0, ("iter_2", "iter_3"))
    started = time.monotonic()
    found = run_search(network, random_samples(4), evaluator, space, options(tmp_path, 3, **others))
    assert time.monotonic() - started < 30
    assert [trial.state for trial in found.trials[:1]] == ["complete"]
    assert len(found.trials) <= 2
    evaluator.hangs = ()
    more = run_search(network, random_samples(4), evaluator, space, options(tmp_path, 600, **others))
    assert len(more.trials) == 12
    assert not any(trial.state == "failed" for trial in more.trials)


def test_only_overdue_work_is_interrupted() -> None:
    for deadline in (None, time.monotonic() + 60, time.monotonic() + 1e12):
        with interrupted_at(deadline):
            pass
    with pytest.raises(OutOfTime), interrupted_at(time.monotonic() + 0.05):
        time.sleep(30)


@pytest.mark.parametrize(
    ("left", "costs", "expected"),
    [(100.0, (3.0, 3.0), [1, 0]), (4.0, (3.0, 3.0), [0, 1]), (30.0, (1.0, 60.0), [0]), (30.0, (60.0, 1.0), [])],
)
def test_no_trial_overtakes_one_that_may_run_out_of_time(
    left: float, costs: tuple[float, ...], expected: list[int]
) -> None:
    recipes = [Recipe(name=str(number)) for number in range(2)]
    known = [Trial(number, recipe) for number, recipe in enumerate(recipes)]
    limit = TimeLimit(left, 0.0)

    def cost(recipe: Recipe) -> float:
        return costs[int(str(recipe.name))]

    state = SimpleNamespace(reference=1.0, trials=[], stopped_by=None, time=limit, estimated_seconds=cost)
    state.options = SearchOptions()
    state.out_of_time = lambda recipe=None: limit.refusal(0.0 if recipe is None else cost(recipe))
    started: list[int] = []
    scheduler = SimpleNamespace(idle=1, capacity=2, busy=False, submit=lambda trial: started.append(trial.number))
    scheduler.first_independent = lambda waiting: len(waiting) - 1
    proposer = SimpleNamespace(look_ahead=None, next=lambda *_: None)
    SearchLoop(cast("Any", state), cast("Any", proposer), cast("Any", scheduler), known).run()
    assert started == expected
