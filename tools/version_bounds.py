"""Runs tests with the lowest versions that pyproject.toml allows (``make test-floor``) or the newest (``test-newest``).

torch is not among them: it has several hundred megabytes. Tests that need it are left out, which the end says.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from environments import ROOT, install, new_environment, run

_EXTRAS = ("detect", "mix", "report", "search")
_TEST_TOOLS = ("hypothesis", "jsonschema", "pandas", "pytest", "pytest-timeout", "pytest-xdist")
_FLOOR_PYTHON = "3.11"

_ROOMS = (
    *("test_quantize_api.py", "test_quantize_command.py", "test_search_command.py"),
    *(
        "cli",
        "convert",
        "data",
        "facts",
        "graph",
        "recipe",
        "report",
        "runtime",
        "autosearch/test_autosearch_samplers.py",
    ),
)
"""Where quantry meets the libraries whose versions differ, in ``tests/``."""

_NEEDS_NEWER = {
    "convert/test_convert_translate.py::test_block_format_is_written_out_as_standard_operators": "onnxruntime 1.27",
    "convert/test_convert_translate.py::test_blocks_stay_as_they_are_in_their_own_dialect": "onnxruntime 1.27",
    "autosearch/test_autosearch_samplers.py::test_sampler_learns_from_the_trials_before": "optuna 5",
    "graph/test_graph_convert_opset.py::test_operator_that_the_converter_does_not_know": "onnx 1.23",
    "facts/test_facts_operators.py::test_row_names_an_operator_of_the_standard_or_of_onnxruntime[PagedAttention]": (
        "onnxruntime 1.31"
    ),
    **{
        f"graph/test_graph_convert_opset.py::test_outputs_stay_the_same[{opset}-26 ": "onnxruntime 1.27"
        for opset in range(7, 26)
    },
}
"""Beginnings of the names of tests of what older libraries cannot do, and a version that can."""


def main() -> None:
    """Install the versions and run the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", choices=["lowest", "newest"])
    parser.add_argument("--python", help="interpreter or its version")
    parser.add_argument("--jobs", default="2", help="processes that run tests")
    arguments = parser.parse_args()
    lowest = arguments.versions == "lowest"
    python = new_environment(
        f"versions-{arguments.versions}",
        *("--resolution", "lowest-direct" if lowest else "highest"),
        *("--editable", f"{ROOT}[{','.join(_EXTRAS)}]"),
        python=arguments.python or (_FLOOR_PYTHON if lowest else sys.executable),
    )
    install(python, *_TEST_TOOLS)
    if lowest:
        check_floors(installed_versions(python))
    for command in (("--version",), ("quantize", "--help"), ("search", "--help"), ("doctor",)):
        run(python.with_name("quantry"), *command, COLUMNS="100")
    skipped = [f"--deselect=tests/{name}" for name in _NEEDS_NEWER] if lowest else []
    tests = [f"tests/{room}" for room in _ROOMS]
    # A library that is older than what it uses warns about that; such warnings are no errors here.
    relaxed = ("-W", "default::DeprecationWarning", "-W", "default::FutureWarning")
    run(
        *(python, "-m", "pytest", "-q", "-n", arguments.jobs, "-p", "no:cacheprovider", *relaxed, *skipped, *tests),
        OMP_NUM_THREADS="1",
    )
    print(f"tested with the {arguments.versions} versions, without torch: what needs it was not tried")
    if lowest:
        print(f"left out: tests of what needs {', '.join(sorted(set(_NEEDS_NEWER.values())))}")


def installed_versions(python: Path) -> dict[str, str]:
    """Return the versions in the virtualenv of a Python, by package."""
    code = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
    text = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    return {_normal(name): version for name, _, version in (item.partition("==") for item in text.split())}


def check_floors(installed: dict[str, str]) -> None:
    """Check that the declared lower bounds are what is installed, so that the tests show that these work."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (project["optional-dependencies"][name] for name in _EXTRAS)
    requirements = {*project["dependencies"], *(item for extra in extras for item in extra)}
    print("lowest versions:", end=" ")
    for requirement in sorted(requirements):
        name, floor = re.fullmatch(r"([\w.-]+)>=([\d.]+).*", requirement).groups()
        version = installed[_normal(name)]
        print(f"{name} {version}", end=", ")
        padded = [*map(int, floor.split(".")), 0, 0][:3]
        assert [*map(int, version.split(".")), 0, 0][:3] == padded, f"{requirement} is declared, {version} installed"
    print(flush=True)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
