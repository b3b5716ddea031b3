"""What all commands share: JSON on standard output, exit codes, -q and -v anywhere on the line."""

import json
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from quantry.cli.app import app
from quantry.cli.json_schemas import RESULTS, output_schema
from test_quantize_api import float_model, images

COMMAND = [sys.executable, "-c", "from quantry.cli.app import main; main()"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(float_model(), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.concatenate(images()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def real(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "line", ["--json nodes m.onnx", "nodes --json m.onnx", "nodes m.onnx --json", "-v nodes m.onnx --json -q"]
)
def test_common_options_are_accepted_anywhere(line: str, folder: Path) -> None:
    done = CliRunner().invoke(app, shlex.split(line), catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert (printed["schema"], printed["version"], printed["exit_code"]) == ("quantry/nodes", 1, 0)
    assert {row["operator"] for row in printed["result"]["nodes"]} >= {"Conv"}


def test_json_of_quantize_has_the_numbers_of_the_table(folder: Path) -> None:
    done = real("quantize", "m.onnx", "-d", "data.npy", "-p", "XINT8", "-o", "out.onnx", "--json")
    printed = json.loads(done.stdout)["result"]
    assert printed["written"] == ["out.onnx"]
    assert printed["evaluation"]["metrics"]["sqnr"]["value"] > 10
    assert printed["evaluation"]["quantized_bytes"] == Path("out.onnx").stat().st_size
    assert sum(entry["count"] for entry in printed["float_because"]) == printed["nodes"]["float"]


def test_quiet_quantize_prints_the_path_alone(folder: Path) -> None:
    done = real("quantize", "m.onnx", "-d", "data.npy", "-q", "-p", "XINT8", "-o", "out.onnx")
    assert (done.stdout, done.stderr, done.returncode) == ("out.onnx\n", "", 0)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("quantize nowhere.onnx --json", "ModelError"),
        ("nodes --json", "MissingParameter"),
        ("nodes m.onnx --jsn --json", "NoSuchOption"),
        ("recipe show nothing --json", "RecipeError"),
        ("--json recipe diff XINT8", "MissingParameter"),
        ("--json cache prune --to never", "RecipeError"),
    ],
)
def test_errors_are_json_too(line: str, kind: str, folder: Path) -> None:
    done = real(*shlex.split(line))
    printed = json.loads(done.stdout)
    assert done.returncode == printed["exit_code"] == 2
    assert printed["error"]["type"] == kind
    assert printed["error"]["message"]
    command = " ".join(word for word in shlex.split(line) if word.islower() and word.isalpha())
    jsonschema.validate(printed, output_schema(next(name for name in RESULTS if command.startswith(name))))


def test_serve_prints_its_json_at_once_and_only_that(folder: Path) -> None:
    (folder / "found").mkdir()
    line = [*COMMAND, "serve", "found", "--port", "0", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] not in ("}\n", ""):
            lines.append(process.stdout.readline())
        printed = json.loads("".join(lines))
        jsonschema.validate(printed, output_schema("serve"))
        with urllib.request.urlopen(printed["result"]["address"], timeout=10) as page:
            assert page.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stdout.read() == ""


def test_interrupted_command_says_so_in_json(folder: Path) -> None:
    """Ctrl-C comes while the command runs the user's own function."""
    (folder / "slow.py").write_text("import os\ndef f(path): os.kill(os.getpid(), 2)\n")
    done = real("evaluate", "m.onnx", "-d", "data.npy", "--metric", "slow:f", "--json")
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, output_schema("evaluate"))
    assert (done.returncode, printed["error"]["type"]) == (130, "KeyboardInterrupt")


def test_interrupt_while_modules_are_loaded_is_one_line(folder: Path) -> None:
    (folder / "typer.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    line = [sys.executable, "-m", "quantry", "presets"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "line",
    [
        "quantize m.onnx -d data.npy --target nowhere",
        "quantize m.onnx -d data.npy --effort huge",
        "quantize m.onnx -d data.npy -o /proc/no/q.onnx",
        "quantize m.onnx -d data.npy --report /proc/r.html",
        "search m.onnx -d data.npy --labels nothing.csv",
        "search nothing.onnx -d data.npy",
    ],
)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder that nobody can write to")
def test_mistake_is_one_line_before_any_work(folder: Path, line: str) -> None:
    done = real(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_closed_pipe_ends_quietly(folder: Path) -> None:
    line = " ".join(map(shlex.quote, [*COMMAND, "presets", "--all"]))
    done = subprocess.run(["bash", "-c", f"{line} | head -1"], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_every_command_has_the_common_options_and_examples_that_parse() -> None:
    root = get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--json", "--quiet", "-q", "--verbose", "-v"} <= options, name
        examples = [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("quantry ")]
        assert examples, name
        for example in examples:
            words = shlex.split(example.partition(" > ")[0])
            assert words[1] == name
            command.make_context(name, words[2:])
