"""Whether a constant of a recommended recipe should change: leave-one-model-out over the shared models.

Each model in turn is set aside, the value that is best on the mean over the other models is chosen, and the model that
was set aside is measured with it. A constant changes only if this helps on the mean over models it was not chosen on.
Values are compared in dB, without labels: with 1,000 images the interval of top-1 is 1.3 points wide.

Run: python -m benchmarks.accuracy.leave_one_out tune.steps.0.damping 0.1 0.01 1.0 [--preset recommended-npu]
     [--only SUITE ...]. The first value is today's.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.suites import SUITES
from benchmarks.harness import Failure, measure
from benchmarks.locations import NotAvailable
from benchmarks.markdown import table
from benchmarks.rows.quantize import QUANTRY
from benchmarks.workloads import QuantizedModel, SharedModel
from quantry.autosearch import with_fields
from quantry.recipe import find_preset, to_plain

Results = Mapping[str, Mapping[str, float]]
"""dB by model and value."""


@dataclass(frozen=True)
class Decision:
    """What setting aside one model at a time says.

    Attributes:
        chosen: By model, the value that is best on the mean over the other models.
        gains: By model, the dB that this value gains over today's on the model itself.
    """

    chosen: Mapping[str, str]
    gains: Mapping[str, float]

    @property
    def mean_gain(self) -> float:
        """The mean over models, each measured with a value that was not chosen on it."""
        return sum(self.gains.values()) / len(self.gains)

    @property
    def changes(self) -> bool:
        """Whether the constant should change: the mean gains, and all models agree on the value."""
        return self.mean_gain > 0 and len(set(self.chosen.values())) == 1


def leave_one_out(results: Results, today: str) -> Decision:
    """Choose a value for each model by the others.

    Args:
        results: dB by model and value; at least two models.
        today: The value of today; it wins ties.
    """
    chosen, gains = {}, {}
    for model, own in results.items():
        others = [result for name, result in results.items() if name != model]
        means = {value: sum(result[value] for result in others) / len(others) for value in own}
        best = max(means, key=lambda value: (means[value], value == today))
        chosen[model], gains[model] = best, own[best] - own[today]
    return Decision(chosen, gains)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("field", help="dotted path of the constant in the recipe")
    parser.add_argument("values", nargs="+", help="values as JSON, today's first")
    parser.add_argument("--preset", default="recommended-npu", help="the recipe")
    parser.add_argument("--only", nargs="+", default=[], choices=[suite.name for suite in SUITES], help="models")
    given = parser.parse_args(arguments)
    results: dict[str, dict[str, float]] = {}
    for suite in SUITES:
        if given.only and suite.name not in given.only:
            continue
        try:
            results[suite.name] = {value: _decibels(suite.name, given, value) for value in given.values}
        except (NotAvailable, Failure) as reason:
            print(f"{suite.name} skipped: {reason}", flush=True)
            continue
        print(suite.name, results[suite.name], flush=True)
    if len(results) < 2:
        print("this needs two models at least")
        return 1
    decision = leave_one_out(results, given.values[0])
    rows = [
        (name, *(f"{own[value]:.2f}" for value in given.values), decision.chosen[name], f"{decision.gains[name]:+.2f}")
        for name, own in results.items()
    ]
    print(table(("model", *given.values, "chosen on the others", "gain in dB"), rows))
    print(f"mean gain {decision.mean_gain:+.3f} dB: {'change it' if decision.changes else 'keep ' + given.values[0]}")
    return 0


def _decibels(suite: str, given: argparse.Namespace, value: str) -> float:
    recipe = with_fields(find_preset(given.preset).recipe, {given.field: json.loads(value)})
    plain: dict[str, Any] = dict(to_plain(recipe))
    made = QuantizedModel(f"{suite}-leave-one-out.onnx", QUANTRY, SharedModel(suite), {"recipe": plain})
    try:
        facts = measure("benchmarks.tasks.suite:compare", {"suite": suite, "model": made.make()["model"]}).facts
    finally:
        made.discard()
    return float(facts["dB"])


if __name__ == "__main__":
    sys.exit(main())
