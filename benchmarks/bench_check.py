"""Regression guard: measures the quick rows again and compares their ratios with the stored ones.

Ratios, never absolute times. A ratio is worse when it left the stored one by more than the noise, which is what the
same side differed by between consecutive runs, now and when the stored ratio was measured.

Run: python -m benchmarks.bench_check
"""

import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import run
from benchmarks.locations import OUT, RESULTS
from benchmarks.machine import describe_machine
from benchmarks.markdown import table
from benchmarks.result_file import ResultFile
from benchmarks.rows import ROWS

_REPETITIONS = 4
_LEAST_TOLERANCE = 1.10
"""Few repetitions can agree by luck; less than this is never called a regression."""

_MEASURES = ("seconds", "cpu_seconds", "peak_bytes")


@dataclass(frozen=True)
class Comparison:
    """One ratio then and now.

    Attributes:
        name: Row, sides and measure.
        before: The stored ratio.
        now: The ratio just measured.
        tolerance: Factor by which it may be worse.
        worse: By what factor it is worse; below 1 it is better.
    """

    name: str
    before: float
    now: float
    tolerance: float
    worse: float

    @property
    def regressed(self) -> bool:
        """Whether it is worse by more than the noise."""
        return self.worse > self.tolerance


def compare(before: dict[str, Any], now: dict[str, Any]) -> list[Comparison]:
    """Return a comparison for each ratio that both results have.

    Args:
        before: Stored entries of rows.
        now: Fresh entries of rows.
    """
    comparisons = []
    for name, entry in now.items():
        stored = {_sides(comparison): comparison for comparison in before.get(name, {}).get("comparisons", ())}
        for comparison in entry["comparisons"]:
            if _sides(comparison) in stored:
                comparisons += _comparisons(name, stored[_sides(comparison)], comparison)
    return comparisons


def _comparisons(name: str, before: dict[str, Any], now: dict[str, Any]) -> list[Comparison]:
    found = []
    for measure in _MEASURES:
        if measure not in before["ratios"] or measure not in now["ratios"]:
            continue
        then, fresh = before["ratios"][measure], now["ratios"][measure]
        worse = then["median"] / fresh["median"] if now["larger_is_better"] else fresh["median"] / then["median"]
        tolerance = max(_LEAST_TOLERANCE, (then["noise"] or 1.0) * (fresh["noise"] or 1.0))
        found.append(Comparison(f"{name}: {_sides(now)}: {measure}", then["median"], fresh["median"], tolerance, worse))
    return found


def _sides(comparison: dict[str, Any]) -> str:
    return f"{comparison['numerator']} / {comparison['denominator']}"


def main() -> int:
    """Measure, compare and return 1 when something got worse."""
    stored = ResultFile(RESULTS / "bench.json").read()
    if not stored["entries"]:
        print(f"skipped: no stored results in {RESULTS}; run `make bench` first")
        return 0
    if stored["machine"] != describe_machine():
        print(f"The stored results come from another machine: {stored['machine']}; ratios may differ for that alone.")
    fresh = ResultFile(OUT / "bench-check.json")
    fresh.start("python -m benchmarks.bench_check", fresh=True)
    run(tuple(row for row in ROWS if row.quick), fresh, _REPETITIONS)
    comparisons = compare(stored["entries"], fresh.read()["entries"])
    lines = [
        (
            v.name,
            f"{v.before:.3g}",
            f"{v.now:.3g}",
            f"{v.worse:.2f}",
            f"{v.tolerance:.2f}",
            "WORSE" if v.regressed else "",
        )
        for v in comparisons
    ]
    print("\n" + table(("ratio", "stored", "now", "worse by", "allowed", ""), lines))
    regressed = sum(comparison.regressed for comparison in comparisons)
    print(f"\n{regressed} of {len(comparisons)} ratios are worse than the noise explains.")
    return 1 if regressed else 0


if __name__ == "__main__":
    sys.exit(main())
