"""Writes the sdist and a wheel for each platform into ``dist/``, and checks them: ``make wheels``.

The wheels are built from the unpacked sdist, which shows that nothing is missing in it. The wheel of this platform is
installed into an empty virtualenv, where the kernels must load and the embedded model must be quantized.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from build_kernels import DESCRIPTION, SOURCES, TARGETS, Target, build_id, this_machine  # noqa: E402
from exported_symbols import library_symbols  # noqa: E402

_LARGEST = 5 * 2**20
"""Bytes of a wheel or the sdist."""

_SYSTEM_LIBRARIES = {"/usr/lib/libSystem.B.dylib"}
"""What a library may need: macOS links it into everything."""

_SMOKE_TEST = """
import numpy as np
import quantry
from quantry.demo import MODEL_PATH, INPUT_NAME
from quantry.numerics import kernels

loaded = kernels.loaded()
assert loaded is not None, "the kernels of the wheel are not loaded"
assert "site-packages" in quantry.__file__, quantry.__file__
random = np.random.default_rng(0)
samples = [{INPUT_NAME: random.uniform(0, 255, (1, 3, 128, 128)).astype(np.float32)} for _ in range(4)]
result = quantry.quantize(str(MODEL_PATH), data=samples, recipe="XINT8")
result.save("detector.int8.onnx")
print(f"smoke test: level {loaded.level}, build {loaded.build_id}, embedded model quantized")
"""


def main() -> None:
    """Build, check, and try the wheel of this platform."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-install", action="store_true", help="do not install the wheel of this platform")
    given = parser.parse_args()
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    sdist = build_sdist(folder)
    for name, target in TARGETS.items():
        wheel = build_wheel(sdist, folder, name)
        check_wheel(wheel, target)
        print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB")
        if name == this_machine() and not given.no_install:
            smoke_test(wheel)


def build_sdist(folder: Path) -> Path:
    """Return the sdist after writing it into a folder."""
    _hatchling(ROOT, folder, "sdist")
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert any(name.endswith("numerics/c/train_rows.c") for name in names), "the sdist must contain the C sources"
    assert not any("/_kernels." in name for name in names), "the sdist must not contain a compiled library"
    assert path.stat().st_size <= _LARGEST, f"{path.name} must be at most {_LARGEST} bytes, got {path.stat().st_size}"
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
    return path


def build_wheel(sdist: Path, folder: Path, target: str) -> Path:
    """Return the wheel of a platform after building it from the sdist."""
    before = set(folder.glob("*.whl"))
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        (unpacked,) = Path(scratch).iterdir()
        _hatchling(unpacked, folder, "wheel", QUANTRY_WHEEL_TARGET=target)
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


def _hatchling(root: Path, folder: Path, kind: str, **variables: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    # Fixed times in archives: the same sources give the same files.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **variables}
    subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)


def check_wheel(wheel: Path, target: Target) -> None:
    """Check tags, size, content and symbols of a wheel."""
    tag = f"py3-none-{target.tag}"
    assert wheel.name.endswith(f"-{tag}.whl"), f"the wheel must be tagged {tag}, got {wheel.name}"
    assert wheel.stat().st_size <= _LARGEST, f"{wheel.name} must be at most {_LARGEST} bytes"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL"))
        kernels = {name for name in names if Path(name).name.startswith("_kernels")}
        described = json.loads(archive.read(f"quantry/numerics/{DESCRIPTION}"))
        content = archive.read(f"quantry/numerics/{target.file}")
    assert f"Tag: {tag}\n" in metadata, metadata
    assert "Root-Is-Purelib: false" in metadata, metadata
    assert kernels == {f"quantry/numerics/{name}" for name in (DESCRIPTION, target.file)}, kernels
    assert not any(name.endswith((".c", ".h")) for name in names), "the wheel must not contain C sources"
    assert described["sha256"] == hashlib.sha256(content).hexdigest(), "the description must fit the library"
    assert described["build_id"] == build_id(), "the library must be built from these sources"
    check_symbols(content, target)


def check_symbols(content: bytes, target: Target) -> None:
    """Check that a library exports every kernel on every level and nothing else, and needs nothing."""
    symbols = library_symbols(content)
    wanted = {f"quantry_{name}_{level}" for name in kernel_names() for level in target.levels}
    wanted |= {"quantry_level", "quantry_build_id", "RegisterCustomOps"}
    assert symbols.exported == wanted, f"exported symbols differ: {sorted(symbols.exported ^ wanted)}"
    assert symbols.imported <= _SYSTEM_LIBRARIES, f"the library must need nothing, got {sorted(symbols.imported)}"
    assert symbols.machine == target.triple.split("-")[0], symbols.machine
    if target.file.endswith(".dylib"):
        promised = target.triple.partition("macos.")[2]
        assert symbols.oldest_macos == promised, f"macOS {promised} must load it, it needs {symbols.oldest_macos!r}"


def kernel_names() -> set[str]:
    """Return the names of the functions that the C sources export on every level."""
    return {
        name for path in SOURCES.glob("*.c") for name in re.findall(r"EXPORT \w+ KERNEL\((\w+)\)", path.read_text())
    }


def smoke_test(wheel: Path) -> None:
    """Install a wheel into an empty virtualenv and quantize the embedded model there."""
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(Path(scratch) / "venv", with_pip=True)
        python = Path(scratch) / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([*install, wheel], check=True, env=environment)
        subprocess.run([python, "-c", _SMOKE_TEST], cwd=scratch, check=True, env=environment)


if __name__ == "__main__":
    main()
