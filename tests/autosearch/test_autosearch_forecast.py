"""The expected end of a search: real searches whose trials take a known time."""

import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples

import quantry
from quantry.autosearch.cost import CostModel
from quantry.autosearch.forecast import Forecast
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial
from quantry.recipe import AdaRound, Gptq, Recipe, TuneOptions, find_preset

# Long against the other work of a trial of the small network, also on a busy machine.
EVALUATION = 0.3


class Slow(Distance):
    """Takes as long as a real evaluation."""

    def __call__(self, model_path: Path) -> float:
        time.sleep(EVALUATION)
        return super().__call__(model_path)

    def per_sample(self, model_path: Path, indices: Any) -> list[float]:
        time.sleep(EVALUATION)
        return super().per_sample(model_path, indices)


def samples() -> list[dict[str, Any]]:
    """Return samples with outliers, for which every calibration method gives another range."""
    return [{name: array**3 for name, array in sample.items()} for sample in random_samples(4)]


@dataclass(frozen=True)
class Clock:
    """Elapsed seconds, and those in which this process and its workers were ready to run but other processes did.

    A forecast assumes that the machine stays as busy as it was, so the latter do not count.
    """

    elapsed: float
    waited: float

    @classmethod
    def now(cls) -> "Clock":
        processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        files = [file for process in processes if (file := Path(f"/proc/{process}/schedstat")).exists()]
        return cls(time.monotonic(), sum(int(file.read_text().split()[1]) for file in files) / 1e9)

    def quiet_seconds(self, since: "Clock", workers: int) -> float:
        return self.elapsed - since.elapsed - (self.waited - since.waited) / workers


def ratio(monkeypatch: pytest.MonkeyPatch, network: Path, output: Path, **options: Any) -> float:
    """Return the time expected after the third trial as a multiple of the time that the others took."""
    seen: list[tuple[Clock, float | None]] = []
    record = SearchState.record

    def recorded(self: SearchState, trial: Trial) -> Trial:
        result = record(self, trial)
        seen.append((Clock.now(), self.seconds_left))
        return result

    start = Clock.now()
    with monkeypatch.context() as patch:
        patch.setattr(SearchState, "record", recorded)
        quantry.search(network, samples(), Slow(network), target="ort-cpu", output_dir=output, **options)
    (at, expected), (end, _) = seen[2], seen[-1]
    assert expected is not None
    if "budget" in options:  # which counts every second
        return expected / (end.elapsed - at.elapsed)
    workers = options.get("n_jobs", 1)
    undisturbed = at.quiet_seconds(start, workers) / (at.elapsed - start.elapsed)
    return expected * undisturbed / end.quiet_seconds(at, workers)


@pytest.mark.parametrize("options", [{"n_trials": 12}, {"n_trials": 12, "n_jobs": 2}, {"budget": 5}], ids=str)
def test_end_of_the_default_space_is_known_after_the_third_trial(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    # Other processes may slow down a part of one search; it is not likely that they do so three times.
    attempts = (ratio(monkeypatch, network, tmp_path / str(attempt), **options) for attempt in range(3))
    assert any(0.7 < found < 1.3 for found in attempts)


def test_running_trial_counts_down_and_others_wait() -> None:
    forecast = Forecast(made_at=10.0, workers=1, estimates=[4.0, 6.0], decided=2, others=5.0)
    assert [forecast.work_left(now) for now in (10.0, 12.0, 30.0)] == [15.0, 13.0, 11.0]
    assert Forecast(10.0, 2, [4.0, 6.0], 2, 10.0).work_left(11.0) == 9.0
    assert Forecast(10.0, 1, [4.0], 1, None).work_left(11.0) is None


def test_search_ends_before_the_trial_that_does_not_fit() -> None:
    forecast = Forecast(made_at=10.0, workers=1, estimates=[4.0, 6.0], decided=2, others=None)
    assert forecast.until_refused(12.0, left=5.0) == 2.0
    assert forecast.until_refused(12.0, left=9.0) == 9.0


def test_each_tuning_algorithm_has_its_own_cost() -> None:
    costs = CostModel()
    plain = find_preset("S8S8_AAWS").recipe

    def tuned(step: Any) -> Recipe:
        return Recipe(plan=plain.plan, tune=TuneOptions((step,)))

    spent = {"observe": 1.0, "tune": 20.0}
    costs.learn(Trial(0, tuned(Gptq()), state="complete", seconds=23.0, computed=spent))
    assert 20 < costs.estimate(tuned(AdaRound(iterations=1000))) < 60
    costs.learn(Trial(1, tuned(AdaRound(iterations=1000)), state="complete", seconds=8.0, computed={"tune": 5.0}))
    assert costs.estimate(tuned(AdaRound(iterations=2000))) == pytest.approx(10 + 3, rel=0.1)
    assert costs.estimate(tuned(Gptq(damping=0.5))) == pytest.approx(20 + 3, rel=0.1)


def test_first_time_of_a_kind_of_work_does_not_count_once_there_are_others() -> None:
    costs = CostModel()
    plain = find_preset("S8S8_AAWS").recipe
    for number, (damping, seconds) in enumerate(((0.1, 40.0), (0.2, 10.0), (0.3, 12.0))):
        recipe = Recipe(plan=plain.plan, tune=TuneOptions((Gptq(damping=damping),)))
        spent = {"observe": 1.0, "tune": seconds} if not number else {"tune": seconds}
        costs.learn(Trial(number, recipe, state="complete", seconds=sum(spent.values()) + 2.0, computed=spent))
    upcoming = Recipe(plan=plain.plan, tune=TuneOptions((Gptq(damping=0.4),)))
    assert costs.estimate(upcoming) == pytest.approx(11 + 2, rel=0.1)
