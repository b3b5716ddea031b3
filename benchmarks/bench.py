"""Runs quantry and its peers side by side and prints ratios of time, CPU time and memory.

Run: python -m benchmarks.bench [--quick] [--only TEXT ...] [--repetitions N] [--resume] [--publish]
"""

import argparse
import shlex
import sys

from benchmarks.harness import Failure, Row, measure, run_row
from benchmarks.locations import OUT, NotAvailable
from benchmarks.publish import publish_speed
from benchmarks.result_file import ResultFile
from benchmarks.rows import ROWS
from benchmarks.speed_table import losses, measures_table, missed_goals, ratios_table

_QUICK_REPETITIONS = 2


def select(rows: tuple[Row, ...], only: list[str], *, quick: bool) -> tuple[Row, ...]:
    """Return the rows to run, in their order.

    Args:
        rows: All rows.
        only: Beginnings of names; empty takes all.
        quick: Take only rows of the quick run.
    """
    chosen = tuple(row for row in rows if (not quick or row.quick) and (not only or row.name.startswith(tuple(only))))
    if not chosen:
        raise SystemExit(f"no row begins with {only}; there are: {', '.join(row.name for row in rows)}")
    return chosen


def warm_up(rows: tuple[Row, ...]) -> None:
    """Read the libraries into the system's cache, so that the first measurement is like the others."""
    for peer, name in ((False, "onnxruntime.quantization"), (True, "quark.onnx")):
        if any(side.peer == peer for row in rows for side in row.sides):
            try:
                measure("benchmarks.tasks.imports:import_module", {"name": name}, peer=peer)
            except (Failure, NotAvailable) as reason:
                _tell(f"{name}: {reason}")


def run(rows: tuple[Row, ...], store: ResultFile, repetitions: int | None = None) -> None:
    """Run the rows and keep each result as soon as it is there.

    Args:
        rows: What to run.
        store: Where results go.
        repetitions: How often each side runs; None takes the row's own number.
    """
    warm_up(rows)
    for row in rows:
        store.put(row.name, run_row(row, repetitions or row.repetitions, _tell))


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, few repetitions, under two minutes")
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of the names of rows")
    parser.add_argument("--repetitions", type=int, help="runs of each side, instead of the row's own number")
    parser.add_argument("--resume", action="store_true", help="keep finished rows of an interrupted run")
    parser.add_argument("--publish", action="store_true", help="keep the results in benchmarks/ and its README.md")
    given = parser.parse_args(arguments)
    rows = select(ROWS, given.only, quick=given.quick)
    store = ResultFile(OUT / ("bench-quick.json" if given.quick else "bench.json"))
    finished = set(store.read()["entries"]) if given.resume else set()
    command = shlex.join(["python", "-m", "benchmarks.bench", *(sys.argv[1:] if arguments is None else arguments)])
    store.start(command, fresh=not (given.resume or given.only))
    run(
        tuple(row for row in rows if row.name not in finished),
        store,
        given.repetitions or (_QUICK_REPETITIONS if given.quick else None),
    )
    show(store, rows)
    if given.publish:
        content = store.read()
        content["entries"] = {row.name: content["entries"][row.name] for row in ROWS if row.name in content["entries"]}
        publish_speed(content)
    return 0


def show(store: ResultFile, rows: tuple[Row, ...]) -> None:
    """Print the tables of these rows."""
    stored = store.read()["entries"]
    entries = {row.name: stored[row.name] for row in rows if row.name in stored}
    print("\n" + measures_table(entries) + "\n\n" + ratios_table(entries))
    for title, lines in (("Goals not reached", missed_goals(entries)), ("Where quantry loses", losses(entries))):
        if lines:
            print(f"\n{title}:\n" + "\n".join(f"- {line}" for line in lines))
    print(f"\nResults: {store.path}")


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
