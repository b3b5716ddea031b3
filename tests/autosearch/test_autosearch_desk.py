"""The desk of a search with workers that take their steps in any order, fail, and die."""

import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantry.autosearch import StopConditions
from quantry.autosearch.configurations import Configuration
from quantry.autosearch.desk import Desk
from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.stream import TRIED, Stream
from quantry.autosearch.study import Proposal
from quantry.recipe import Percentile, Recipe, ScaleOptions, from_plain


@dataclass
class Worker:
    """One worker: quantizes, claims the model or not, judges."""

    task: TrialTask | None = None
    judging: str | None = None
    outcome: Outcome | None = None
    claims: set[str] = field(default_factory=set)


class Workers:
    """An executor without processes, whose workers take their steps in the order of a random generator."""

    isolated = True

    def __init__(self, contents: list[str], jobs: int, chance: random.Random, troubles: float = 0.0) -> None:
        self.contents = contents
        self.capacity = jobs
        self.chance = chance
        self.troubles = troubles
        self.workers = [Worker() for _ in range(jobs)]
        self.judged: list[int] = []

    def submit(self, task: TrialTask) -> None:
        next(worker for worker in self.workers if worker.task is None).task = task

    def wait(self, deadline: float | None = None) -> Outcome:
        while True:
            worker = self.chance.choice([worker for worker in self.workers if worker.task is not None])
            if worker.outcome is not None:
                outcome, worker.task, worker.outcome = worker.outcome, None, None
                return outcome
            self.step(worker)

    def step(self, worker: Worker) -> None:
        task = worker.task
        assert task is not None
        content = self.contents[task.number]
        if self.chance.random() < self.troubles:
            worker.judging = None
            worker.claims = set() if (died := self.chance.random() < 0.5) else worker.claims - {content}
            worker.outcome = Outcome(task.number, "failed", error="trouble", died=died)
        elif worker.judging is not None:
            worker.judging = None
            self.judged.append(task.number)
            worker.outcome = Outcome(task.number, "complete", 1.0, seconds=10.0, content=content)
        elif content in task.stand_ins:
            same_as = task.stand_ins[content]
            worker.outcome = Outcome(task.number, "complete", content=content, same_as=same_as)
        elif content in task.judged:
            worker.outcome = replace(task.judged[content], number=task.number)
        elif any(content in other.claims for other in self.workers if other is not worker) and content != task.claimed:
            computed = {"scale": 2.0}
            worker.outcome = Outcome(
                task.number, "complete", content=content, seconds=3.0, computed=computed, deferred=True
            )
        else:
            worker.claims.add(content)
            worker.judging = content

    def close(self) -> None:
        self.workers = []


def ledger() -> Any:
    """Return as much of a ledger as a desk asks; trials with the same tens share work."""
    costs = SimpleNamespace(unfinished=lambda recipe: {recipe.scale.activation.percentile // 10})
    time = SimpleNamespace(deadline=None)
    return SimpleNamespace(reference=1.0, best=None, contents={}, costs=costs, time=time)


def proposal(number: int) -> Proposal:
    return Proposal(
        number, number, Configuration(0, {}, Recipe(scale=ScaleOptions(activation=Percentile(50 + number))))
    )


def run(workers: Workers, book: Any) -> dict[int, Outcome]:
    """Run all trials, a few in turn and settled in order, as a search does."""
    desk = Desk(book, workers)
    waiting = [proposal(number) for number in range(len(workers.contents))]
    arrived: dict[int, Outcome] = {}
    settled = 0
    while waiting or desk.busy:
        while waiting and desk.idle > 0:
            desk.submit(waiting.pop(desk.first_apart(waiting[:4])))
        outcome = desk.wait()
        if outcome is None:
            continue
        assert outcome.number not in arrived
        assert not outcome.deferred
        assert outcome.same_as is None or outcome.same_as < outcome.number
        arrived[outcome.number] = outcome
        while settled in arrived:
            if arrived[settled].state == "complete":
                assert arrived[settled].same_as is None or arrived[settled].content in book.contents
                book.contents.setdefault(arrived[settled].content, settled)
            settled += 1
    return arrived


@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_every_model_is_judged_once_whatever_the_order_of_steps(jobs: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        contents = [chance.choice("abcd") for _ in range(18)]
        workers = Workers(contents, jobs, chance)
        outcomes = run(workers, book := ledger())
        assert sorted(outcomes) == list(range(18))
        assert sorted(contents[number] for number in workers.judged) == sorted(set(contents))
        assert book.contents == {content: contents.index(content) for content in contents}
        assert [outcomes[number].same_as for number in book.contents.values()] == [None] * len(book.contents)


@pytest.mark.parametrize("jobs", [2, 3, 5])
def test_no_trial_is_lost_where_workers_fail_and_die(jobs: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        contents = [chance.choice("abcd") for _ in range(18)]
        workers = Workers(contents, jobs, chance, troubles=0.15)
        outcomes = run(workers, ledger())
        assert sorted(outcomes) == list(range(18))
        assert all(outcome.score == 1.0 for outcome in outcomes.values() if outcome.content and outcome.same_as is None)


def run_put_off(first: Outcome) -> tuple[Desk, list[TrialTask], Outcome | None]:
    """Put off trial 0 because of trial 1, let that one end, and return what comes next of the desk."""
    given: list[TrialTask] = []
    put_off = Outcome(
        0, "complete", seconds=5.0, computed={"tune": 4.0}, reused=("observe",), content="a", deferred=True
    )
    answers = iter([put_off, first, Outcome(0, "complete", 1.0, seconds=2.0, reused=("observe", "tune"), content="a")])
    executor = SimpleNamespace(
        capacity=2, isolated=True, submit=given.append, wait=lambda _: next(answers), close=lambda: None
    )
    desk = Desk(ledger(), cast("Any", executor))
    desk.submit(proposal(0))
    desk.submit(proposal(1))
    assert desk.wait() is None
    assert desk.wait() == first
    return desk, given, desk.wait()


@pytest.mark.parametrize("fails", [False, True])
def test_trial_that_was_put_off_has_the_score_of_a_later_one_and_all_of_its_own_work(*, fails: bool) -> None:
    first = Outcome(1, "failed", error="bad") if fails else Outcome(1, "complete", 1.0, content="a")
    desk, given, outcome = run_put_off(first)
    assert given[2].judged == ({} if fails else {"a": first})
    assert given[2].claimed == "a"
    assert from_plain(given[2].recipe) == proposal(0).configuration.recipe
    assert outcome is not None
    assert (outcome.seconds, outcome.computed, outcome.reused) == (7.0, {"tune": 4.0}, ("observe",))
    assert not desk.busy


def test_trial_has_the_score_of_a_later_one_that_ended_before_an_interruption() -> None:
    workers, book = Workers(["a", "a", "b"], 2, random.Random(0)), ledger()
    later = Outcome(1, "complete", 0.25, content="a")
    known = [proposal(0), replace(proposal(1), outcome=later), proposal(2)]
    book.trials, book.stopped_by, book.cost = [], None, lambda _: 0.0
    book.settle = lambda _, outcome: book.trials.append(outcome)
    book.out_of_time = lambda _=None: None
    book.time.refusal = lambda _: None
    book.options = SimpleNamespace(stop=StopConditions())
    book.study = SimpleNamespace(record=lambda *_: None)
    proposer = SimpleNamespace(look_ahead=None, next=lambda *_: None)
    assert Stream(book, cast("Any", proposer), Desk(book, workers), known).run() == TRIED
    assert [(trial.number, trial.score) for trial in book.trials] == [(0, 0.25), (1, 0.25), (2, 1.0)]
    assert workers.judged == [2]
