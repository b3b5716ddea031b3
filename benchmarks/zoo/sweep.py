"""Measures architectures and keeps the results. Runs in the environment of the libraries; `__main__` starts it."""

import argparse
import re
import sys
from datetime import UTC, datetime
from fnmatch import fnmatch

from benchmarks.locations import OUT
from benchmarks.machine import library_versions
from benchmarks.publish import publish_zoo
from benchmarks.result_file import ResultFile
from benchmarks.zoo.architectures import ARCHITECTURES
from benchmarks.zoo.onnx_results import Entry
from benchmarks.zoo.processes import Limits, measured
from benchmarks.zoo.summary import WANTED, target_lines, zoo_table

_LIBRARIES = ("torch", "onnxscript", "onnx", "onnxruntime", "torchvision", "timm", "transformers", "ultralytics")


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description="Quantize many architectures.")
    parser.add_argument("--only", nargs="+", default=[], help="architectures, such as 'timm/*' or '*yolo*'")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no other architecture after this time"
    )
    parser.add_argument("--each", type=float, default=Limits.seconds, help="processor seconds of one architecture")
    parser.add_argument("--memory", type=float, default=Limits.gigabytes, help="gigabytes of one architecture")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument("--failed", action="store_true", help="measure again only what missed a target")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--publish", action="store_true", help="keep the results in benchmarks/ and its README.md")
    return parser


def main() -> int:
    """Run what the command line asks for; return 1 if a target is missed."""
    given = options().parse_args()
    chosen = [name for name in _mixed() if not given.only or any(fnmatch(name, text) for text in given.only)]
    if given.list:
        print("\n".join(chosen))
        return 0
    store = ResultFile(OUT / "zoo.json")
    known = store.read()["entries"]
    if given.failed:
        chosen = [name for name in chosen if name in known and _misses({name: known[name]}, wanted=1)]
    elif not given.fresh:
        chosen = [name for name in chosen if name not in known]
    store.start("make zoo", fresh=False, versions=library_versions(*_LIBRARIES))
    for name, entry in measured(chosen, given.seconds, Limits(given.each, given.memory)):
        store.put(name, {**entry, "date": datetime.now(UTC).isoformat(timespec="seconds")})
        _tell(name, entry)
    entries = {name: entry for name, entry in store.read()["entries"].items() if name in ARCHITECTURES}
    text = "\n".join(f"- {line}" for line in target_lines(entries))
    print(f"\n{text}\n\nResults: {store.path}")
    if given.publish:
        publish_zoo({**store.read(), "entries": entries}, f"{text}\n\n{zoo_table(entries)}")
    return int(bool(_misses(entries, WANTED)))


def _mixed() -> list[str]:
    """Return all names, one of each family first and the libraries in turn, so that a part of the sweep is diverse."""
    groups: dict[str, list[str]] = {}
    for name in ARCHITECTURES:
        groups.setdefault(name.split("/")[0], []).append(name)
    places = {name: (at + 0.5) / len(group) for group in groups.values() for at, name in enumerate(group)}
    mixed = sorted(places, key=lambda name: places[name])
    firsts = set({_family(name): name for name in reversed(mixed)}.values())
    return sorted(mixed, key=lambda name: name not in firsts)


def _family(name: str) -> str:
    """Return the letters that the names of one family of architectures begin with."""
    return re.split(r"[^a-z]", name.split("/")[1].removeprefix("tf_").removeprefix("test_"))[0]


def _misses(entries: dict[str, Entry], wanted: int) -> list[str]:
    return [line for line in target_lines(entries, wanted) if line.startswith("not met")]


def _tell(name: str, entry: Entry) -> None:
    parts = [
        f"{key} {found.get('dB', found['state'])}" + (f" [{found['why']}]" if "why" in found else "")
        for key, found in entry.items()
        if isinstance(found, dict) and "state" in found and (key != "built" or found["state"] != "ok")
    ]
    print(f"{name} ({entry['seconds']:.0f} s): {', '.join(parts)} {entry.get('stopped', '')}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
