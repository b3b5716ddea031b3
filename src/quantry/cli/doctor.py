"""``quantry doctor``: what is installed, what works, and what is missing."""

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata, util
from typing import Literal

from rich.markup import escape
from rich.table import Table

import quantry
from quantry.cli.frame import ExitCode, current_output
from quantry.recipe.json_result import JsonResult

State = Literal["good", "missing", "broken"]
_MARKS: dict[State, str] = {"good": "[green]good[/]", "missing": "[yellow]missing[/]", "broken": "[bold red]broken[/]"}

# Optional packages by import name: the extra that installs each, and what it is for.
_OPTIONAL = {
    "torch": ("torch", "finetuning with gradients, PyTorch models"),
    "scipy": ("mix", "exact allocation of mixed precision, the sampler qmc"),
    "cmaes": ("search", "the sampler cmaes"),
    "faster_coco_eval": ("detect", "faster mean average precision"),
    "ray": ("ray", "search workers on a cluster"),
    "psycopg": ("postgres", "studies in PostgreSQL"),
    "mlflow": ("mlflow", "search --log-to mlflow"),
    "wandb": ("wandb", "search --log-to wandb"),
    "optuna_dashboard": ("dashboard", "optuna-dashboard for studies"),
}
_REQUIRED = ("numpy", "onnx", "onnx-ir", "onnxruntime", "optuna", "pillow", "safetensors")


@dataclass(frozen=True)
class Finding(JsonResult):
    """A part of the installation.

    Attributes:
        what: The part.
        state: good, missing (optional) or broken (quantry needs it).
        detail: Version, place or what to do.
    """

    what: str
    state: State
    detail: str


@dataclass(frozen=True)
class DoctorResult(JsonResult):
    """What is installed, what works, and what is missing.

    Attributes:
        findings: All parts.
    """

    findings: tuple[Finding, ...]


def doctor() -> None:
    """Check the installation: versions, compiled kernels, devices, cache and optional packages."""
    findings = (*_machine(), *_packages(), _kernels(), _runtime(), _cache(), *_optional())
    out = current_output()
    table = Table("part", "state", "detail", box=None)
    for finding in findings:
        table.add_row(escape(finding.what), _MARKS[finding.state], escape(finding.detail))
    out.answer.print(table)
    broken = [finding.what for finding in findings if finding.state == "broken"]
    out.console.print(f"broken: {', '.join(broken)}" if broken else "Everything that quantry needs works.")
    out.result(DoctorResult(findings), ExitCode.NOT_GOOD_ENOUGH if broken else ExitCode.GOOD)


def _machine() -> list[Finding]:
    from quantry.runtime.threads import thread_count

    return [
        Finding("quantry", "good", quantry.__version__),
        Finding("Python", "good", f"{platform.python_version()} at {sys.executable}"),
        Finding("machine", "good", f"{platform.platform()}, threads: {thread_count()}"),
    ]


def _packages() -> list[Finding]:
    findings = []
    for name in _REQUIRED:
        try:
            findings.append(Finding(name, "good", metadata.version(name)))
        except metadata.PackageNotFoundError:
            findings.append(Finding(name, "broken", f"pip install {name}"))
    return findings


def _kernels() -> Finding:
    from quantry.numerics import kernels

    loaded = kernels.loaded()
    if loaded is None:
        return Finding("compiled kernels", "missing", f"NumPy is used, which is slower: {kernels.why_missing()}")
    return Finding("compiled kernels", "good", f"level {loaded.level}, build {kernels.build_id()}")


def _runtime() -> Finding:
    from quantry.runtime.sessions import available_providers

    try:
        return Finding("onnxruntime providers", "good", ", ".join(available_providers()))
    except ImportError as error:
        return Finding("onnxruntime providers", "broken", str(error))


def _cache() -> Finding:
    from quantry.cli.cache import readable
    from quantry.memo import store_usage
    from quantry.quantization import default_store_path

    folder = default_store_path()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding("cache", "broken", f"{folder} is not writable; set QUANTRY_CACHE to another folder")
    return Finding("cache", "good", f"{readable(store_usage(folder).bytes_on_disk)} in {folder}")


def _optional() -> list[Finding]:
    findings = []
    for module, (extra, purpose) in _OPTIONAL.items():
        if util.find_spec(module) is None:
            findings.append(Finding(module, "missing", f"for {purpose}: pip install 'quantry[{extra}]'"))
        else:
            findings.append(Finding(module, "good", f"for {purpose}"))
    return findings
