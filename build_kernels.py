"""Builds the compiled kernels: one shared library from ``src/quantry/numerics/c``.

It is hatchling's build hook, so ``pip install`` and ``pip wheel`` run it, with the compiler from the package index
(``ziglang``, a build requirement). An editable install leaves the library in the source tree. ``QUANTRY_WHEEL_TARGET``
builds a wheel for another platform; see `TARGETS`. As a command it rebuilds the library in the source tree::

    python build_kernels.py
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a command, or imported by a test
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "src" / "quantry" / "numerics" / "c"
PACKAGE = SOURCES.parent
DESCRIPTION = "_kernels.json"

# No flag depends on the machine that builds. Fusing multiplications with additions is left to the sources, so that all
# levels and compilers give the same bytes; see kernels.h. math.h functions set no errno, which allows vector code.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fPIC",
)
# The library uses nothing of the C library, so one file serves glibc of any age and musl.
LINK_FLAGS = ("-shared", "-s", "-nostdlib")

# Instruction-set levels of the x86-64 ABI: SSE4.2 (2008), AVX2 with FMA (2013), AVX-512 (2017). clang uses half of the
# 512 bits by default, which makes AdaRound 1.3x slower.
X86_LEVELS = {
    "v2": ("-march=x86_64_v2",),
    "v3": ("-march=x86_64_v3",),
    "v4": ("-march=x86_64_v4", "-mprefer-vector-width=512"),
}
ARM_LEVELS = {"neon": ("-march=generic",)}
_WITHOUT_LEVEL = ("levels", "session_operators")


@dataclass(frozen=True)
class Target:
    """A platform that wheels are built for.

    Attributes:
        triple: As zig names it.
        tag: Platform tag of the wheel.
        file: Name of the library.
        levels: The compiler's options for each instruction-set level.
    """

    triple: str
    tag: str
    file: str
    levels: dict[str, tuple[str, ...]]


TARGETS = {
    "linux-x86_64": Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", "_kernels.so", X86_LEVELS),
    "linux-aarch64": Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", "_kernels.so", ARM_LEVELS),
    "windows-x86_64": Target("x86_64-windows-gnu", "win_amd64", "_kernels.dll", X86_LEVELS),
    "macos-x86_64": Target("x86_64-macos.11.0", "macosx_11_0_x86_64", "_kernels.dylib", X86_LEVELS),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64", "_kernels.dylib", ARM_LEVELS),
}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the library to a wheel and tags the wheel with its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library; without a compiler for the platform, the wheel has none and runs everywhere.

        Args:
            version: ``editable`` or ``standard``.
            build_data: What hatchling puts into the wheel; changed.

        Raises:
            ValueError: ``QUANTRY_WHEEL_TARGET`` names no platform.
        """
        wanted = os.environ.get("QUANTRY_WHEEL_TARGET", "")
        if wanted and wanted not in TARGETS:
            raise ValueError(f"QUANTRY_WHEEL_TARGET must be one of {', '.join(TARGETS)}, got {wanted!r}")
        target = TARGETS.get(wanted or this_machine())
        compile_library = build if has_zig() else build_with_system_compiler
        # A distribution that has no zig names its compiler in CC; that of Visual Studio has other options.
        can_compile = has_zig() or ("CC" in os.environ and not wanted and sys.platform != "win32")
        if target is None or not can_compile:
            self.app.display_warning("quantry: no compiler for this platform, so there are no compiled kernels")
            return
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{target.tag}"
        if version == "editable":
            compile_library(target, PACKAGE)
            return
        folder = Path(tempfile.mkdtemp(prefix="quantry-kernels-"))
        self._folder = folder
        for path in compile_library(target, folder):
            build_data["force_include"][str(path)] = f"quantry/numerics/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what `initialize` left, once the wheel is written."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)


def this_machine() -> str:
    """Return the name in `TARGETS` of the platform that this runs on, which may not be there."""
    systems = {"linux": "linux", "win32": "windows", "darwin": "macos"}
    machine = platform.machine().lower().replace("amd64", "x86_64")
    return f"{systems.get(sys.platform, sys.platform)}-{machine}"


def has_zig() -> bool:
    """Whether the compiler of the package index is installed."""
    return importlib.util.find_spec("ziglang") is not None


def build_id() -> str:
    """Return a digest of all that determines the kernels' results: their sources and flags."""
    digest = hashlib.sha256(repr((FLAGS, X86_LEVELS, ARM_LEVELS)).encode())
    for path in sorted(SOURCES.iterdir()):
        # A checkout on Windows may have other line ends.
        digest.update(path.name.encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def is_current(folder: Path = PACKAGE) -> bool:
    """Whether the library in a folder was built from the sources as they are."""
    try:
        built = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return bool(built["build_id"] == build_id() and (folder / built["file"]).stat().st_size == built["size"])
    except (OSError, ValueError, KeyError):
        return False


def build(target: Target, folder: Path) -> list[Path]:
    """Compile the library with zig and write it into a folder, with a description that loading it checks.

    Args:
        target: The platform.
        folder: Where the two files are written.

    Returns:
        Their paths.
    """
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target.triple]
    return _build(zig, target, folder)


def build_with_system_compiler(target: Target, folder: Path) -> list[Path]:
    """Compile the library for this machine with the compiler in ``CC`` or ``cc``; the results have the same bytes.

    For work on the kernels and for tests where zig is not installed. Wheels are always built with zig.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    # GCC and clang have other names for the same processors than zig.
    levels = {
        level: tuple(option.replace("_", "-").replace("generic", "armv8-a") for option in options)
        for level, options in target.levels.items()
    }
    return _build(compiler, replace(target, levels=levels), folder)


def _build(compiler: list[str], target: Target, folder: Path) -> list[Path]:
    identity = build_id()
    with tempfile.TemporaryDirectory(prefix="quantry-kernels-") as scratch:
        # A cache of its own keeps the build independent of the user's home directory, which may not be writable.
        caches = {name: str(Path(scratch) / "cache") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
        environment = {**os.environ, **caches}

        def run(*arguments: str) -> None:
            subprocess.run([*compiler, *arguments], check=True, env=environment)  # noqa: S603 - our own sources

        objects = []
        for source in sorted(SOURCES.glob("*.c")):
            # These find out what the processor supports, so they are compiled once, for the oldest one.
            variants = {level: (*options, f"-DLEVEL={level}") for level, options in target.levels.items()}
            if source.stem in _WITHOUT_LEVEL:
                variants = {"any": (f'-DBUILD_ID="{identity}"',)}
            for name, options in variants.items():
                objects.append(str(Path(scratch) / f"{source.stem}_{name}.o"))
                run(*FLAGS, *options, "-c", str(source), "-o", objects[-1])
        made = Path(scratch) / target.file
        # macOS writes a library's name into it, which would be the scratch folder's path.
        name = (f"-Wl,-install_name,@rpath/{target.file}",) if target.file.endswith(".dylib") else ()
        run(*LINK_FLAGS, *name, "-o", str(made), *objects)
        return _install(made, folder, identity)


def _install(made: Path, folder: Path, identity: str) -> list[Path]:
    """Write the library and its description into a folder, each at once, so that no process sees half a file."""
    content = made.read_bytes()
    described = {
        "build_id": identity,
        "file": made.name,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    written = []
    for name, data in ((made.name, content), (DESCRIPTION, json.dumps(described, indent=1).encode() + b"\n")):
        temporary = folder / f"{name}.{os.getpid()}"
        temporary.write_bytes(data)
        written.append(temporary.replace(folder / name))
    return written


def build_if_outdated(*, force: bool = False) -> None:
    """Build the library into the source tree, unless the one there is current.

    Args:
        force: Build it anyway.
    """
    target = TARGETS.get(this_machine())
    if target is None or (is_current() and not force):
        return
    if has_zig():
        build(target, PACKAGE)
    else:
        build_with_system_compiler(target, PACKAGE)


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description="Build the compiled kernels into the source tree.")
    parser.add_argument("--force", action="store_true", help="build even if the library there is current")
    build_if_outdated(force=parser.parse_args().force)


if __name__ == "__main__":
    main()
