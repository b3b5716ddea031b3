"""The scheduler, with workers that finish in any order, fail, and die."""

import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantry.autosearch import SearchOptions, Trial
from quantry.autosearch.scheduler import Scheduler, SearchLoop
from quantry.autosearch.stop import ALL_TRIED
from quantry.autosearch.trial_runner import KnownModels
from quantry.recipe import Percentile, Recipe, ScaleOptions

Work = tuple[Trial, int | None, KnownModels]


@dataclass
class Worker:
    """One worker: quantizes, claims the model or not, evaluates."""

    work: Work | None = None
    evaluating: str | None = None
    result: Trial | None = None
    claims: set[str] = field(default_factory=set)


class FakeWorkers:
    """Workers without processes, whose steps are interleaved by a random generator."""

    isolated = True

    def __init__(self, contents: list[str], jobs: int, chance: random.Random, failure_rate: float = 0.0) -> None:
        self.contents = contents
        self.capacity = jobs
        self.chance = chance
        self.failure_rate = failure_rate
        self.workers = [Worker() for _ in range(jobs)]
        self.evaluated: list[int] = []

    def submit(self, *work: Any) -> None:
        next(worker for worker in self.workers if worker.work is None).work = work  # type: ignore[assignment]

    def wait(self, deadline: float | None = None) -> Trial:
        while True:
            worker = self.chance.choice([worker for worker in self.workers if worker.work is not None])
            if worker.result is not None:
                result, worker.work, worker.result = worker.result, None, None
                return result
            self.step(worker)

    def step(self, worker: Worker) -> None:
        assert worker.work is not None
        trial, _, known = worker.work
        content = self.contents[trial.number]
        complete = replace(trial, state="complete", content=content)
        if self.chance.random() < self.failure_rate:
            worker.evaluating = None
            worker.claims = set() if (died := self.chance.random() < 0.5) else worker.claims - {content}
            worker.result = trial.failed("trouble", worker_died=died)
        elif worker.evaluating is not None:
            worker.evaluating = None
            self.evaluated.append(trial.number)
            worker.result = replace(complete, score=1.0, seconds=10.0)
        elif content in known.earlier:
            worker.result = replace(complete, same_as=known.earlier[content])
        elif content in known.later:
            worker.result = trial.with_result(known.later[content].result())
        elif self.is_claimed_by_other(worker, content) and content != known.unclaimed:
            worker.result = replace(complete, state="waiting", seconds=3.0, computed={"scale": 2.0})
        else:
            worker.claims.add(content)
            worker.evaluating = content

    def is_claimed_by_other(self, worker: Worker, content: str) -> bool:
        return any(content in other.claims for other in self.workers if other is not worker)

    def close(self) -> None:
        self.workers = []


def fake_state() -> Any:
    """Return as much of a SearchState as a scheduler needs; trials with the same tens share work."""
    costs = SimpleNamespace(unfinished=lambda recipe: {recipe.scale.activation.percentile // 10})
    time = SimpleNamespace(deadline=None)
    return SimpleNamespace(reference=1.0, best=None, first_with_content={}, costs=costs, time=time)


def waiting_trial(number: int) -> Trial:
    # The value of the parameter cannot be pickled; workers must not need it.
    recipe = Recipe(scale=ScaleOptions(activation=Percentile(50 + number)))
    return Trial(number, recipe, {"function": lambda: number})


def run(workers: FakeWorkers, state: Any) -> dict[int, Trial]:
    """Run all trials, a few at a time and recorded in order, as a search does."""
    scheduler = Scheduler(state, workers)
    waiting = [waiting_trial(number) for number in range(len(workers.contents))]
    finished: dict[int, Trial] = {}
    recorded = 0
    while waiting or scheduler.busy:
        while waiting and scheduler.idle > 0:
            scheduler.submit(waiting.pop(scheduler.first_independent(waiting[:4])))
        trial = scheduler.wait()
        if trial is None:
            continue
        assert trial.number not in finished
        assert trial.is_finished
        assert trial.same_as is None or trial.same_as < trial.number
        assert trial.assignment["function"]() == trial.number
        finished[trial.number] = trial
        while recorded in finished:
            content = finished[recorded].content
            if finished[recorded].state == "complete":
                assert finished[recorded].same_as is None or content in state.first_with_content
                state.first_with_content.setdefault(content, recorded)
            recorded += 1
    return finished


@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_every_model_is_evaluated_once_in_any_order_of_steps(jobs: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        contents = [chance.choice("abcd") for _ in range(18)]
        workers = FakeWorkers(contents, jobs, chance)
        trials = run(workers, state := fake_state())
        first = state.first_with_content
        assert sorted(trials) == list(range(18))
        assert sorted(contents[number] for number in workers.evaluated) == sorted(set(contents))
        assert first == {content: contents.index(content) for content in contents}
        assert [trials[number].same_as for number in first.values()] == [None] * len(first)


@pytest.mark.parametrize("jobs", [2, 3, 5])
def test_no_trial_is_lost_when_workers_fail_and_die(jobs: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        contents = [chance.choice("abcd") for _ in range(18)]
        workers = FakeWorkers(contents, jobs, chance, failure_rate=0.15)
        trials = run(workers, fake_state())
        assert sorted(trials) == list(range(18))
        assert all(trial.score == 1.0 for trial in trials.values() if trial.content and trial.same_as is None)


def run_deferred(other: Trial) -> tuple[Scheduler, list[Work], Trial | None]:
    """Defer trial 0 because of trial 1, let that one end, and return what the scheduler does next."""
    submitted: list[Work] = []
    first = replace(waiting_trial(0), content="a")
    deferred = replace(first, seconds=5.0, computed={"tune": 4.0}, reused=("observe",))
    final = replace(first, state="complete", score=1.0, seconds=2.0, reused=("observe", "tune"))
    results = iter([deferred, other, final])
    workers = SimpleNamespace(
        capacity=2,
        isolated=True,
        submit=lambda *work: submitted.append(work),
        wait=lambda _: next(results),
        close=lambda: None,
    )
    scheduler = Scheduler(fake_state(), cast("Any", workers))
    scheduler.submit(waiting_trial(0))
    scheduler.submit(waiting_trial(1))
    assert scheduler.wait() is None
    finished = scheduler.wait()
    assert finished is not None
    assert (finished.number, finished.state, finished.score) == (1, other.state, other.score)
    return scheduler, submitted, scheduler.wait()


@pytest.mark.parametrize("fails", [False, True])
def test_deferred_trial_shares_the_score_of_a_later_one_and_counts_all_its_work(*, fails: bool) -> None:
    other = waiting_trial(1)
    other = other.failed("bad") if fails else replace(other, state="complete", score=1.0, content="a")
    scheduler, submitted, trial = run_deferred(other)
    restarted, _, known = submitted[2]
    assert {content: later.score for content, later in known.later.items()} == ({} if fails else {"a": 1.0})
    assert known.unclaimed == "a"
    assert restarted.recipe == waiting_trial(0).recipe
    assert trial is not None
    assert (trial.seconds, trial.computed, trial.reused) == (7.0, {"tune": 4.0}, ("observe",))
    assert not scheduler.busy


def test_trial_shares_the_score_of_a_later_one_from_before_an_interruption() -> None:
    workers, state = FakeWorkers(["a", "a", "b"], 2, random.Random(0)), fake_state()
    later = replace(waiting_trial(1), state="complete", score=0.25, content="a")
    known = [waiting_trial(0), later, waiting_trial(2)]
    state.trials, state.stopped_by, state.estimated_seconds = [], None, lambda _: 0.0
    state.record = state.trials.append
    state.out_of_time = lambda _=None: None
    state.time.refusal = lambda _: None
    state.options = SearchOptions()
    state.study = SimpleNamespace(save_result=lambda *_: None)
    proposer = SimpleNamespace(look_ahead=None, next=lambda *_: None)
    assert SearchLoop(state, cast("Any", proposer), Scheduler(state, workers), known).run() == ALL_TRIED
    assert [(trial.number, trial.score) for trial in state.trials] == [(0, 0.25), (1, 0.25), (2, 1.0)]
    assert workers.evaluated == [2]
