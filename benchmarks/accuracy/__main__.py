"""Compares the quality of quantized models on labelled data.

Run: python -m benchmarks.accuracy [--quick] [--only SUITE ...] [--who TEXT ...] [--limit N] [--effort high]
     [--resume] [--publish]
"""

import argparse
import shlex
import sys
from fnmatch import fnmatch
from functools import partial

from benchmarks.accuracy.contestants import auto_contestants, contestants, quick_contestants
from benchmarks.accuracy.quality_table import quality_table
from benchmarks.accuracy.run_suite import run_suite
from benchmarks.accuracy.suites import SUITES
from benchmarks.harness import Failure
from benchmarks.locations import OUT, RESULTS, NotAvailable
from benchmarks.publish import publish_accuracy, with_published_scores
from benchmarks.result_file import ResultFile
from quantry.auto import EFFORTS

_QUICK_LIMITS = {"mobilenetv2_035": 200, "cifar10": 1000}
"""The suites of the quick run, and how many held-out samples each takes."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two models, few samples, under two minutes")
    parser.add_argument("--only", nargs="+", default=[], choices=[suite.name for suite in SUITES], help="models")
    parser.add_argument("--who", nargs="+", default=[], help="contestants, such as 'quark*'; float is always in")
    parser.add_argument("--limit", type=int, help="number of held-out samples, for a first look")
    parser.add_argument("--effort", choices=[*EFFORTS], help="also try the default recipe with this effort")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has scored")
    parser.add_argument("--publish", action="store_true", help="keep the results in benchmarks/ and its README.md")
    given = parser.parse_args(arguments)
    if given.publish and (given.quick or given.limit is not None):
        parser.error("--publish needs all samples, so it does not go with --quick or --limit")
    store = ResultFile(OUT / ("accuracy-quick.json" if given.quick else "accuracy.json"))
    known = store.read()["entries"] if given.resume else {}
    command = shlex.join(["python", "-m", "benchmarks.accuracy", *(sys.argv[1:] if arguments is None else arguments)])
    store.start(command, fresh=not (given.resume or given.only))
    for suite in SUITES:
        if given.only and suite.name not in given.only:
            continue
        if given.quick and suite.name not in _QUICK_LIMITS:
            continue
        everybody = (quick_contestants if given.quick else contestants)(suite.name)
        if given.effort is not None:
            everybody = (*everybody, *auto_contestants(suite.name, given.effort))
        who = tuple(
            one for one in everybody if not given.who or any(fnmatch(one.label, name) for name in ("float", *given.who))
        )
        limit = _QUICK_LIMITS[suite.name] if given.quick and given.limit is None else given.limit
        try:
            run_suite(suite, who, limit, known.get(suite.name, {}), partial(store.put, suite.name), _tell)
        except (NotAvailable, Failure) as reason:
            _tell(f"{suite.name} skipped: {reason}")
    entries = store.read()["entries"]
    print("\n" + quality_table(entries) + f"\n\nResults: {store.path}")
    if given.publish and entries:
        content = store.read()
        if given.only or given.who:
            content = with_published_scores(content, ResultFile(RESULTS / "accuracy.json").read())
        publish_accuracy(content, quality_table(content["entries"]))
    return 0


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
