"""Every command's JSON has exactly the keys of its documented schema."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from tools import docs_folder
from typer.testing import CliRunner

from quantry.cli.app import app
from quantry.cli.json_schemas import RESULTS, output_schema

# One or more lines for each command; they run in order in one folder.
LINES = {
    "quantize": [
        "quantize model.onnx -d images --pixel-scale 1/255 -p XINT8 -o q.onnx --latency 2",
        "quantize model.onnx -d images --pixel-scale 1/255 --effort low --samples 6 -o auto.onnx",
    ],
    "evaluate": ["evaluate q.onnx --float model.onnx -d images --pixel-scale 1/255 --metric sqnr --max-drop 99"],
    "diagnose": [
        "diagnose model.onnx -d images --pixel-scale 1/255 -p XINT8",
        "diagnose model.onnx q.onnx -d images --pixel-scale 1/255",
        "diagnose model.onnx -d images --pixel-scale 1/255 -p XINT8 --calibration --evaluation-data photos",
        "diagnose model.onnx -d images --pixel-scale 1/255 -p XINT8 --fix --effort low",
    ],
    "search": [
        "search model.onnx -d images --pixel-scale 1/255 --n-trials 1 -o found",
        "search model.onnx -d images --pixel-scale 1/255 --n-trials 1 --tolerance 1e-12 --objectives size -o none",
    ],
    "report": ["report found"],
    "nodes": ["nodes model.onnx"],
    "convert": ["convert q.onnx --to qdq -o qdq.onnx"],
    "check": ["check q.onnx --target vitisai"],
    "compare": ["compare model.onnx q.onnx -d images --pixel-scale 1/255 --latency 2"],
    "placement": ["placement q.onnx -d images --pixel-scale 1/255"],
    "targets": ["targets", "targets vitisai"],
    "presets": ["presets", "presets XINT8"],
    "recipe show": ["recipe show XINT8"],
    "recipe diff": ["recipe diff XINT8 S8S8_AAWS"],
    "recipe validate": ["recipe validate found/recipe.yaml wrong.yaml"],
    "schema": ["schema recipe", "schema quantize --output"],
    "cache size": ["cache size --store store"],
    "cache prune": ["cache prune --store store"],
    "cache verify": ["cache verify --store store"],
    "cache clear": ["cache clear --store store"],
    "doctor": ["doctor"],
    "compat": ["compat --scan script.py"],
}
# These serve a page, or search; test_cli_frame.py and test_demo_command.py validate what they print.
ELSEWHERE = {"serve", "demo"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    docs_folder.prepare(folder)
    (folder / "script.py").write_text("print(1)\n")
    (folder / "wrong.yaml").write_text("plan: {activaton: {}}\n")
    return folder


def test_every_command_has_a_schema_and_a_line() -> None:
    commands = {one.callback.__name__ for one in app.registered_commands if one.callback}
    groups = {
        f"{group.typer_instance.info.name} {one.callback.__name__}"
        for group in app.registered_groups
        for one in group.typer_instance.registered_commands
        if one.callback
    }
    assert set(RESULTS) == commands | groups == set(LINES) | ELSEWHERE


def test_output_of_every_command_follows_its_schema(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("QUANTRY_CACHE", str(folder / "store"))
    for command, lines in LINES.items():
        schema = output_schema(command)
        jsonschema.Draft202012Validator.check_schema(schema)
        for line in lines:
            done = CliRunner().invoke(app, ["--json", *line.split()], catch_exceptions=False)
            jsonschema.validate(json.loads(done.stdout), schema)


def test_no_schema_accepts_anything() -> None:
    """Every object names its keys or the type of its values, so that a misspelt key is found."""

    def objects(schema: object) -> Iterator[dict[str, object]]:
        if isinstance(schema, dict):
            if schema.get("type") == "object":
                yield schema
            for part in schema.values():
                yield from objects(part)
        for part in schema if isinstance(schema, list) else ():
            yield from objects(part)

    loose = {
        command for command, schema in RESULTS.items() for one in objects(schema) if "additionalProperties" not in one
    }
    assert loose == {"schema"}


def test_every_key_says_what_it_means() -> None:
    def unexplained(schema: object) -> Iterator[str]:
        if isinstance(schema, dict):
            properties = schema.get("properties", {})
            yield from (name for name, part in properties.items() if not part["description"])
            for part in schema.values():
                yield from unexplained(part)
        for part in schema if isinstance(schema, list) else ():
            yield from unexplained(part)

    assert {command: names for command, schema in RESULTS.items() if (names := [*unexplained(schema)])} == {}


@pytest.mark.parametrize("wrong", [{}, {"samples": 1}, {"store": "s", "usage": {"results": "many"}}])
def test_schema_refuses_what_a_command_does_not_print(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, RESULTS["cache size"])
