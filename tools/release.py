"""Checks what is released, and writes what goes with it into ``build/release``: ``make release-check``, ``make audit``.

The wheels are built twice and must be equal byte for byte; their metadata and content, pyproject.toml, the version, the
licences of the dependencies and known vulnerabilities are checked. Written are the licences, a list of all parts (SBOM,
CycloneDX) and, with ``notes TAG``, the section of CHANGELOG.md.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from environments import BUILD, ROOT, install, new_environment, run

_FOLDER = BUILD / "release"
_TOOLS = ("twine", "check-wheel-contents", "validate-pyproject", "pip-audit", "cyclonedx-bom", "hatchling")
_COMPILER = "ziglang==0.17.0"
_LICENCES = re.compile(r"\b(MIT|BSD|Apache|ISC|PSF|Python-2\.0|HPND|MPL|Unlicense|Zlib|0BSD|CC0)", re.IGNORECASE)
"""Licences that allow any use; a dependency with another one needs a decision."""

_LICENCE_CODE = """
import importlib.metadata, json
rows = []
for part in importlib.metadata.distributions():
    data = part.metadata
    said = [data["License-Expression"], *(c for c in data.get_all("Classifier", []) if c.startswith("License"))]
    text = "; ".join(x.rpartition(" :: ")[2] for x in said if x) or (data["License"] or "not stated").splitlines()[0]
    rows.append((data["Name"], data["Version"], text))
print(json.dumps(sorted(rows)))
"""


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["check", "audit", "notes"])
    parser.add_argument("tag", nargs="?", help="for notes: such as v0.1.0")
    arguments = parser.parse_args()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments.command == "check":
        check()
    elif arguments.command == "audit":
        audit(new_environment("audit", "pip-audit"))
    else:
        write_notes(arguments.tag)


def check() -> None:
    """Build everything and check it."""
    release_section(version())
    tools = new_environment("release-tools", *_TOOLS, _COMPILER)
    run(tools.with_name("validate-pyproject"), "pyproject.toml")
    run(tools, "tools/wheels.py")
    first = digests()
    run(tools, "tools/wheels.py", "--no-install")
    different = [name for name, digest in digests().items() if first[name] != digest]
    if different:
        sys.exit(f"two builds must be equal byte for byte, these differ: {', '.join(different)}")
    print(f"two builds of {len(first)} files are equal byte for byte")
    files = sorted(str(path) for path in (ROOT / "dist").iterdir())
    run(tools.with_name("twine"), "check", "--strict", *files)
    run(tools.with_name("check-wheel-contents"), *(name for name in files if name.endswith(".whl")))
    runtime = new_environment("runtime", *(line for line in project()["dependencies"]))
    check_licences(runtime)
    sbom = _FOLDER / "sbom.json"
    run(
        *(tools.with_name("cyclonedx-py"), "environment", "--output-reproducible", "--pyproject", "pyproject.toml"),
        *("--output-file", sbom, runtime),
    )
    parts = json.loads(sbom.read_text(encoding="utf-8"))["components"]
    print(f"{sbom.relative_to(ROOT)}: {len(parts)} parts")
    audit(tools)
    print(f"quantry {version()} may be released")


def digests() -> dict[str, str]:
    """Return the digest of each file in ``dist/``."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (ROOT / "dist").iterdir()}


def project() -> dict[str, list[str]]:
    """Return the table of that name in pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version() -> str:
    """Return the version, which is written in one place."""
    return re.search(r'^__version__ = "(.+)"', (ROOT / "src/quantry/__init__.py").read_text(), re.MULTILINE)[1]


def release_section(number: str) -> str:
    """Return what CHANGELOG.md says about a version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(number)}\][^\n]*\n(.*?)(?=^## \[|^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        sys.exit(f"CHANGELOG.md must have a section about {number}")
    return section[1].strip() + "\n"


def write_notes(tag: str | None) -> None:
    """Write the notes of a release, whose tag must name the version."""
    if tag != f"v{version()}":
        sys.exit(f"the tag must be v{version()}, got {tag}")
    path = _FOLDER / "notes.md"
    path.write_text(release_section(version()), encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(path.read_text(encoding='utf-8').splitlines())} lines")


def check_licences(python: Path) -> None:
    """List the licences of the packages in a virtualenv, and refuse those that nobody has decided about."""
    rows = json.loads(subprocess.run([python, "-c", _LICENCE_CODE], check=True, capture_output=True, text=True).stdout)
    path = _FOLDER / "licences.txt"
    path.write_text("".join(f"{name} {number}: {licence}\n" for name, number, licence in rows), encoding="utf-8")
    unknown = [f"{name}: {licence}" for name, _, licence in rows if not _LICENCES.search(licence)]
    if unknown:
        sys.exit(f"these licences need a decision: {', '.join(unknown)}")
    print(f"{path.relative_to(ROOT)}: {len(rows)} packages, all with licences that allow any use")


def audit(tools: Path) -> None:
    """Ask for known vulnerabilities of the oldest and the newest versions that may be installed.

    What the registry knows nothing about is no success: it is said, and a failure where the variable CI is set.
    """
    missing, vulnerable = set(), []
    for resolution in ("lowest-direct", "highest"):
        python = new_environment(f"audit-{resolution}", "--resolution", resolution, *project()["dependencies"])
        install(python, "pip")
        command = [tools.with_name("pip-audit"), "--format", "json", "--progress-spinner", "off"]
        frozen = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
        path = _FOLDER / f"{resolution}.txt"
        path.write_text(frozen, encoding="utf-8")
        options = ["--no-deps", "--disable-pip", "--requirement", path]
        answer = subprocess.run([*command, *options], capture_output=True, text=True, check=False).stdout
        for package in json.loads(answer or '{"dependencies": []}')["dependencies"] or [
            {"name": "all", "skip_reason": ""}
        ]:
            if "skip_reason" in package:
                missing.add(package["name"])
            vulnerable += [f"{package['name']} {item['id']} ({resolution})" for item in package.get("vulns", ())]
    if vulnerable:
        sys.exit(f"known vulnerabilities: {', '.join(vulnerable)}")
    if missing:
        print(f"NOT AUDITED, nothing was answered about {len(missing)} packages: {', '.join(sorted(missing))}")
        if os.environ.get("CI"):
            sys.exit("the audit is incomplete")
    else:
        print("no known vulnerabilities, neither in the oldest versions nor in the newest")


if __name__ == "__main__":
    main()
