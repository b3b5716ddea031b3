"""Runs `kernel_digests.py` on processors and systems: ``make test-wheel``, ``test-cpus``, ``test-wheels``.

``this`` installs and runs the wheel of this machine, whichever system it has. ``cpus`` runs it on each instruction-set
level: as far as this processor has it directly, and on emulated processors, where an instruction that one lacks ends
the program. ``wheels`` loads the wheels of other platforms: Linux on ARM in qemu, Windows in Wine with Python's own
build for it. Nothing here runs macOS, whose two wheels are inspected only. All must print the same digests; what could
not be tried is said and is a failure.

Needs Debian's packages qemu-user (10 or newer), mmdebstrap and wine (10 or newer), and for Windows the embeddable
package of Python in a folder that the variable WINDOWS_PYTHON names.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments import BUILD, ROOT, new_environment, uv
from wheels import TARGETS, check_wheel, this_machine

_SCRIPT = ROOT / "tools" / "kernel_digests.py"
_PROCESSORS = ("Nehalem", "Haswell-noTSX", "max")
"""SSE4.2; AVX2; all that qemu has, which is AVX2 as well: it cannot emulate AVX-512."""
_ARM_PROCESSOR = "cortex-a72"  # the kernels of OpenBLAS for newer ones compute NaN in qemu
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Complex functions of newer ones are missing in Wine.
_WINDOWS_NUMPY = "numpy==2.0.2"

Outcome = dict[str, Any] | str
"""What the script printed, or why it was not tried."""


def main() -> None:
    """Run on all, compare, and say what was not tried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["this", "cpus", "wheels"])
    what = parser.parse_args().what
    native = new_environment("digests", "-c", pins(), wheel(this_machine()))
    options = [] if what == "cpus" else ["--model"]
    expected = digests(native, _SCRIPT, *options)
    if isinstance(expected, str):
        sys.exit(expected)
    report("this machine", expected, expected)
    if what == "this":
        return
    outcomes = on_processors(native) if what == "cpus" else on_systems()
    good = [report(name, outcome, expected) for name, outcome in outcomes]
    if not all(good):
        sys.exit(f"{good.count(False)} of {len(good)} differ or were not tried")
    print("all have the same bytes")


def on_processors(python: Path) -> Iterator[tuple[str, Outcome]]:
    """Run the wheel of this machine on every level of this processor and on emulated processors."""
    for level in TARGETS[this_machine()].levels:
        yield f"level {level}", digests(python, _SCRIPT, QUANTRY_NATIVE=level)
    emulator = program("qemu-x86_64")
    for processor in _PROCESSORS:
        yield (
            f"qemu {processor}",
            digests(emulator, "-cpu", processor, python, _SCRIPT) if emulator else "no qemu-x86_64",
        )


def on_systems() -> Iterator[tuple[str, Outcome]]:
    """Load the wheels of other platforms."""
    for name in ("macos-x86_64", "macos-arm64"):
        check_wheel(wheel(name), TARGETS[name])
        print(f"{name}: inspected (symbols, libraries, oldest macOS, signature), NOT RUN: nothing here runs macOS")
    yield "linux-aarch64", on_arm()
    yield "windows-x86_64", on_windows()


def on_arm() -> Outcome:
    """Run the wheel for Linux on ARM with Debian's Python for ARM."""
    emulator, folder = program("qemu-aarch64"), BUILD / "aarch64"
    if emulator is None or shutil.which("mmdebstrap") is None:
        return "qemu-aarch64 and mmdebstrap must be installed"
    system = folder / "system"
    if not system.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packages = "--include=python3,libstdc++6"
        command = ["mmdebstrap", "--quiet", "--variant=extract", "--arch=arm64", packages, "trixie", str(system)]
        subprocess.run(command, check=True)
        (system / "lib").symlink_to("usr/lib")  # what no script of Debian's packages has made
    interpreter = next((system / "usr" / "bin").glob("python3.[0-9]*"))
    site = packages_for("linux-aarch64", "aarch64-manylinux_2_28", interpreter.name.removeprefix("python"), folder)
    variables = {"PYTHONHOME": str(system / "usr"), "PYTHONPATH": str(site)}
    return digests(emulator, "-cpu", _ARM_PROCESSOR, "-L", system, interpreter, _SCRIPT, "--model", **variables)


def on_windows() -> Outcome:
    """Run the wheel for Windows in Wine."""
    given, wine = os.environ.get("WINDOWS_PYTHON", ""), shutil.which("wine")
    if not given or wine is None:
        return "wine must be installed, and WINDOWS_PYTHON must name a folder with Python's embeddable package"
    (archive,) = Path(given).glob("python3?*.zip")
    folder, version = BUILD / "windows", archive.stem.removeprefix("python")
    python = folder / "python"
    shutil.rmtree(python, ignore_errors=True)
    shutil.copytree(given, python)
    packages_for("windows-x86_64", "x86_64-pc-windows-msvc", f"{version[0]}.{version[1:]}", folder, _WINDOWS_NUMPY)
    (python / f"{archive.stem}._pth").write_text(f"{archive.name}\n.\n..\\site\n")
    shutil.copy(_SCRIPT, folder)
    variables = {"WINEDEBUG": "-all", "WINEPREFIX": str(folder / "prefix")}
    return digests(wine, "python.exe", "..\\kernel_digests.py", "--model", folder=python, **variables)


def packages_for(target: str, platform: str, version: str, folder: Path, *others: str) -> Path:
    """Return a folder with the wheel of a platform and the packages that it needs there.

    Args:
        target: The wheel's platform, as in `TARGETS`.
        platform: The same for uv.
        version: Of Python.
        folder: Where the folder is.
        others: Packages whose version differs from constraints.txt.
    """
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    where = ("--target", site, "--python-platform", platform, "--python-version", version, "--only-binary", ":all:")
    uv("pip", "install", *where, "-c", pins(*others), *others, wheel(target))
    return site


def pins(*others: str) -> Path:
    """Return a file of the versions in constraints.txt, without those of some packages, and of torch."""
    names = {"torch", *(item.partition("==")[0] for item in others)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    path = BUILD / "pins.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(line for line in lines if line.partition("==")[0] not in names) + "\n")
    return path


def wheel(target: str) -> Path:
    """Return the wheel of a platform."""
    files = list((ROOT / "dist").glob(f"*-{TARGETS[target].tag}.whl"))
    if len(files) != 1:
        sys.exit(f"dist/ must have one wheel of {target}, got {len(files)}: make wheels")
    return files[0]


def program(name: str) -> Path | None:
    """Return an emulator, which Debian also has as a static program."""
    path = shutil.which(name) or shutil.which(f"{name}-static")
    return Path(path) if path else None


def digests(*command: str | Path, folder: Path = BUILD, **variables: str) -> Outcome:
    """Run the script and return what it printed, or the end of its messages.

    Args:
        command: How Python and the script are started.
        folder: Where.
        variables: Environment variables that are added.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "QUANTRY_NATIVE")}
    environment = {**kept, **_ONE_THREAD, **variables}
    arguments = [str(part) for part in command]
    # Wine does not accept a terminal as standard input.
    outcome = subprocess.run(
        arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    text = outcome.stdout.decode(errors="replace")
    if line := re.search(r'^.*?(\{"system".*\})\s*$', text, re.MULTILINE):
        return json.loads(line[1])
    return f"exit status {outcome.returncode}: {(text + outcome.stderr.decode(errors='replace'))[-600:]}"


def report(name: str, outcome: Outcome, expected: dict[str, Any]) -> bool:
    """Print one line; return whether it is the expected result."""
    if isinstance(outcome, str):
        print(f"{name}: NOT TRIED: {outcome}", flush=True)
        return False
    different = [part for part, digest in outcome["digests"].items() if digest != expected["digests"][part]]
    missing = sorted(expected["digests"].keys() - outcome["digests"].keys())
    summary = f"{outcome['system']}, Python {outcome['python']}, level {outcome['level']}, build {outcome['build_id']}"
    state = f"{len(outcome['digests']) - len(different)} digests are the same"
    for word, parts in (("DIFFERENT", different), ("NOT TRIED", missing)):
        state += f", {word}: {'; '.join(parts)}" if parts else ""
    print(f"{name}: {summary}: {state}", flush=True)
    return not different and not missing


if __name__ == "__main__":
    main()
