"""The command line: what the README shows, one-line errors, and Ctrl-C."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.cli.console import ended_by_interrupt
from quantry.recipe import PRESETS, from_yaml
from test_quantize_api import float_model, images

COMMAND = [sys.executable, "-c", "from quantry.cli.app import main; main()"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, with a model and a folder of data."""
    onnx.save(float_model(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for index, image in enumerate(images()):
        np.save(tmp_path / "data" / f"{index}.npy", image)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def in_process(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_readme_command_writes_the_model_and_tells_what_it_did(folder: Path) -> None:
    output = in_process("quantize", "m.onnx", "--data", "data", "--preset", "XINT8", "-o", "out.onnx")
    assert "XINT8" in output
    assert "sqnr" in output
    assert "1 kept float" in output
    assert "wrote out.onnx" in output
    expected = quantry.quantize(folder / "m.onnx", folder / "data", "XINT8", store=None)
    assert (folder / "out.onnx").read_bytes() == expected.to_bytes()
    ort.InferenceSession(folder / "out.onnx").run(None, {"image": images()[0]})


def test_default_target_is_in_the_current_folder_and_has_the_presets_name(folder: Path) -> None:
    Path("elsewhere").mkdir()
    Path("m.onnx").rename("elsewhere/m.onnx")
    in_process("quantize", "elsewhere/m.onnx", "--data", "data", "-p", "U8S8_AAWS", "--no-evaluate", "--store", "none")
    assert (folder / "m.U8S8_AAWS.onnx").exists()


def test_presets_are_listed_and_each_prints_a_recipe_file() -> None:
    listed = in_process("presets")
    assert all(name in listed for name in ("XINT8", "S8S8_AAWS", "CPU_INT8"))
    for name, preset in PRESETS.items():
        assert from_yaml(in_process("presets", name)) == preset.recipe


def test_finetuning_variants_of_presets_are_counted_and_listed_on_request() -> None:
    variants = [name for name in PRESETS if name.endswith(("_ADAROUND", "_ADAQUANT"))]
    short, whole = in_process("presets"), in_process("presets", "--all")
    assert "A8W8_ADAQUANT" not in short
    assert "INT8_CNN_ACCURATE" in short
    assert f"{len(variants)} more" in short
    assert all(name in whole for name in variants)
    assert "--all" not in whole


def test_help_shows_the_default_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "[default: (auto)]" in in_process("quantize", "--help")


def test_images_enter_as_the_options_say_and_a_note_tells_how(folder: Path) -> None:
    pictures = folder / "pictures"
    pictures.mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(pixels).save(pictures / f"{index}.png")
    output = in_process(
        *("quantize", "m.onnx", "-d", "pictures", "-p", "XINT8", "-o", "out.onnx"),
        *("--pixel-scale", "1/255", "--color", "bgr"),
        *("--mean", "0.5,0.4,0.3", "--resize", "Center-Crop", "--crop-fraction", "0.875"),
    )
    told = " ".join(output.split())
    assert (
        "images are used as BGR, pixels 0..255 times 0.00392157, minus mean 0.5,0.4,0.3, divided by std 1,1,1" in told
    )
    assert "resize center-crop of 0.875" in told
    assert "on the calibration samples (2)" in told
    options = quantry.ImageOptions(
        mean=(0.5, 0.4, 0.3), scale=1 / 255, color="BGR", resize="center-crop", crop_fraction=0.875
    )
    expected = quantry.quantize("m.onnx", "pictures", "XINT8", images=options, store=None)
    assert Path("out.onnx").read_bytes() == expected.to_bytes()


def pictures_in(folder: Path) -> None:
    (folder / "pictures").mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 3, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{index}.png")


def test_images_without_a_pixel_option_are_warned_of_first_and_noted_first(folder: Path) -> None:
    pictures_in(folder)
    told = CliRunner().invoke(
        app, ("quantize", "m.onnx", "-d", "pictures", "-p", "XINT8", "-o", "out.onnx", "--report", "r.html")
    )
    assert told.exit_code == 0
    assert told.output.startswith("warning: images are used as RGB pixels 0..255")
    assert "--pixel-scale" in told.stderr
    assert told.stderr.count("warning:") == 1
    assert "images are used as RGB pixels 0..255" in (folder / "r.html").read_text(encoding="utf-8")
    notes = quantry.quantize("m.onnx", "pictures", store=None).notes
    assert "ImageOptions(scale=1/255" in str(notes[0])
    by_folder = quantry.quantize("m.onnx", quantry.data.ImageFolder("pictures"), store=None).notes
    assert by_folder[0] == notes[0]


def test_listed_images_are_images(folder: Path) -> None:
    pictures_in(folder)
    Path("list.txt").write_text("pictures/1.png\n")
    told = in_process("quantize", "m.onnx", "-d", "list.txt", "-p", "XINT8", "-o", "out.onnx", "--no-evaluate")
    assert told.startswith("warning: images are used as RGB pixels 0..255")
    assert "images are used as RGB" in told
    Path("arrays.txt").write_text("data/0.npy\n")
    assert "images" not in in_process(
        "quantize", "m.onnx", "-d", "arrays.txt", "-p", "XINT8", "-o", "out.onnx", "--no-evaluate"
    )


def test_images_with_a_pixel_option_get_no_warning(folder: Path) -> None:
    pictures_in(folder)
    told = in_process(
        "quantize", "m.onnx", "-d", "pictures", "-p", "XINT8", "-o", "out.onnx", "--no-evaluate", "--pixel-scale", "1"
    )
    assert "warning" not in told
    notes = quantry.quantize("m.onnx", "pictures", images=quantry.ImageOptions(), store=None).notes
    assert not any("no pixel option was given" in str(note) for note in notes)


def test_mean_and_std_of_another_scale_are_warned_of(folder: Path) -> None:
    pictures_in(folder)
    with pytest.warns(UserWarning, match="add --pixel-scale 1/255"):
        told = in_process(
            "quantize",
            "m.onnx",
            "-d",
            "pictures",
            "-p",
            "XINT8",
            "-o",
            "out.onnx",
            "--mean",
            "0.5,0.5,0.5",
            "--std",
            "0.2",
        )
    assert "note: pixels 0..255 become inputs" in told
    assert "letterbox for most detectors" in " ".join(told.split())


def test_comparison_may_be_on_data_of_its_own(folder: Path) -> None:
    (folder / "other").mkdir()
    np.save(folder / "other" / "a.npy", images(1)[0])
    told = in_process("quantize", "m.onnx", "-d", "data", "--evaluation-data", "other", "-p", "XINT8", "-o", "out.onnx")
    assert "on other (1)" in " ".join(told.split())
    assert "one sample" in told


def test_outputs_that_are_far_off_are_reported_with_what_helps(folder: Path) -> None:
    good = in_process("quantize", "m.onnx", "-d", "data", "-o", "out.onnx")
    Path("r.yaml").write_text("scale: {activation: {kind: Percentile, percentile: 50}}", encoding="utf-8")
    poor = in_process("quantize", "m.onnx", "-d", "data", "-o", "out.onnx", "-r", "r.yaml")
    assert "differ a lot from those of the float model" not in " ".join(good.split())
    assert "differ a lot from those of the float model" in " ".join(poor.split())


def test_arrays_get_no_note_about_images(folder: Path) -> None:
    assert "images are used" not in in_process(
        "quantize", "m.onnx", "-d", "data", "-p", "XINT8", "-o", "out.onnx", "--no-evaluate"
    )


def test_recipe_name_that_is_no_file_name_still_gives_one(folder: Path) -> None:
    Path("r.yaml").write_text('name: "a/b: c?"', encoding="utf-8")
    in_process("quantize", "m.onnx", "-d", "data", "-r", "r.yaml", "--no-evaluate")
    assert Path("m.a-b- c-.onnx").exists()


def test_printed_recipe_gives_the_presets_model(folder: Path) -> None:
    Path("r.yaml").write_text(in_process("presets", "XINT8"), encoding="utf-8")
    in_process("quantize", "m.onnx", "--data", "data", "--recipe", "r.yaml", "-o", "by-recipe.onnx")
    in_process("quantize", "m.onnx", "--data", "data", "--preset", "XINT8", "-o", "by-preset.onnx")
    assert Path("by-recipe.onnx").read_bytes() == Path("by-preset.onnx").read_bytes()


def test_second_run_reuses_what_the_first_computed(folder: Path) -> None:
    in_process("quantize", "m.onnx", "--data", "data", "-p", "XINT8", "-o", "one.onnx")
    output = in_process("quantize", "m.onnx", "--data", "data", "-p", "XINT8", "-o", "two.onnx")
    assert re.search(r"time: 0\.\d s; .*\d of \d+ steps reused", output)
    told = in_process("quantize", "m.onnx", "--data", "data", "-p", "XINT8", "-o", "three.onnx", "-v")
    assert "observe reused" in told


def test_options_reach_the_recipe(folder: Path) -> None:
    output = in_process(
        *("quantize", "m.onnx", "--data", "data", "-p", "XINT8", "-o", "out.onnx"),
        *("--exclude", "conv", "--exclude", "^fl", "--samples", "2", "--latency", "3"),
    )
    assert "1 kept float: excluded by its name: 'conv'" in output
    assert "latency" in output
    nodes = {node.op_type: node for node in onnx.load("out.onnx").graph.node}
    assert nodes["Conv"].input[1] == "w"


def test_installed_command_prints_its_version() -> None:
    installed = Path(sys.executable).with_name("quantry")
    if not installed.exists():
        pytest.skip("the command is not installed next to this Python")
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == quantry.__version__


def test_python_m_runs_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quantry", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == quantry.__version__


ERRORS: dict[str, tuple[tuple[str, ...], str]] = {
    "missing model": (("nowhere.onnx", "-d", "data"), "nowhere.onnx"),
    "empty model": (("empty.onnx", "-d", "data"), "empty.onnx"),
    "missing data": (("m.onnx", "-d", "nowhere"), "nowhere"),
    "unknown preset": (("m.onnx", "-d", "data", "-p", "XINT9"), "did you mean 'XINT8'"),
    "preset and recipe": (("m.onnx", "-d", "data", "-p", "XINT8", "-r", "r.yaml"), "not both"),
    "missing recipe": (("m.onnx", "-d", "data", "-r", "r.yaml"), "the recipe file must exist"),
    "exclusion without match": (("m.onnx", "-d", "data", "--exclude", "cnov"), "did you mean 'conv'"),
    "no samples": (("m.onnx", "-d", "data", "--samples", "0"), "at least 1"),
    "mean that is no number": (("m.onnx", "-d", "data", "--mean", "a,b"), "--mean"),
    "pixel scale that is no number": (("m.onnx", "-d", "data", "--pixel-scale", "1/0"), "--pixel-scale"),
    "unknown resize": (("m.onnx", "-d", "data", "--resize", "crop"), "center-crop"),
    "store that is a file": (("m.onnx", "-d", "data", "--store", "m.onnx"), "m.onnx"),
    "target below a file": (("m.onnx", "-d", "data", "-o", "empty.onnx/out.onnx"), "empty.onnx is a file"),
    "target is a directory": (("m.onnx", "-d", "data", "-o", "data"), "directory"),
    "target is the model": (("m.onnx", "-d", "data", "-o", "m.onnx"), "float model itself"),
    "report is the model": (("m.onnx", "-d", "data", "--report", "m.onnx"), "--report must not be the float model"),
    "report is the target": (
        ("m.onnx", "-d", "data", "--report", "out.onnx"),
        "--report must not be the quantized model",
    ),
    "report is a directory": (("m.onnx", "-d", "data", "--report", "data"), "--report must be a file"),
    "images without data": (("m.onnx", "--mean", "0.5"), "image options need --data"),
}


def run_main(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the installed entry point in this process and return its exit code."""
    from quantry.cli.app import main

    monkeypatch.setattr(sys, "argv", ["quantry", *arguments])
    # The entry point replaces it; this brings it back after the test.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("fault", ERRORS)
def test_fault_of_the_user_is_one_line_on_stderr_with_exit_code_2(
    fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.onnx").write_bytes(b"")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    arguments, message = ERRORS[fault]
    target = () if "-o" in arguments else ("-o", "out.onnx")
    assert run_main(["quantize", *arguments, *target], monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_error_of_the_real_command_has_no_traceback(folder: Path) -> None:
    done = command("quantize", "m.onnx", "--data", "nowhere", "-p", "XINT8", "-o", "out.onnx")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["error: the path of calibration data must exist, got nowhere"]


def test_real_command_without_data_is_no_success(folder: Path) -> None:
    done = command("quantize", "m.onnx", "-p", "XINT8", "-o", "out.onnx", "--no-evaluate")
    assert done.returncode == 3
    first, last = done.stderr.splitlines()
    assert first.startswith("warning: no calibration data")
    assert "--force" in last
    assert "note: no calibration data were given" in done.stdout
    assert not Path("out.onnx").exists()


def test_useless_model_is_written_on_request(folder: Path) -> None:
    with pytest.warns(UserWarning, match="no calibration data"):
        in_process("quantize", "m.onnx", "-p", "XINT8", "-o", "out.onnx", "--no-evaluate", "--force")
    assert Path("out.onnx").exists()


def test_model_with_nothing_to_quantize_is_no_success(folder: Path) -> None:
    done = CliRunner().invoke(app, ("quantize", "m.onnx", "-d", "data", "-o", "out.onnx", "--exclude", "^.*"))
    assert done.exit_code == 3
    assert "nothing was quantized" in done.output
    assert not Path("out.onnx").exists()


def test_interrupt_that_a_library_turned_into_another_error_still_ends_quietly() -> None:
    def import_library() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    with pytest.raises(SystemExit) as stopped, ended_by_interrupt():
        import_library()
    assert stopped.value.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_error_without_an_interrupt_passes() -> None:
    with pytest.raises(ImportError), ended_by_interrupt():
        raise ImportError("initialization failed")


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise there")
def test_interrupt_stops_promptly_and_leaves_no_half_written_file(folder: Path) -> None:
    """Samples enough for a minute, so that the interrupt comes while the float model runs."""
    rng = np.random.default_rng(0)
    np.save("many.npy", rng.normal(size=(60_000, 3, 8, 8)).astype(np.float32))
    cache = Path(os.environ["QUANTRY_CACHE"])
    program = subprocess.Popen(
        [*COMMAND, "quantize", "m.onnx", "--data", "many.npy", "-p", "XINT8", "-o", "out.onnx"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(cache.glob("index/*/*.json")) and time.monotonic() < deadline:
        # The prepared model is kept once it is there; observing is what comes next.
        time.sleep(0.05)
    time.sleep(0.5)
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, errors = program.communicate(timeout=60)
    assert time.monotonic() - sent < 20
    assert program.returncode in {1, 130, -signal.SIGINT}
    assert "Traceback" not in errors
    assert sorted(path.name for path in folder.iterdir()) == ["data", "m.onnx", "many.npy"]
    assert not list((cache / "temp").glob("*")) if (cache / "temp").exists() else True


def test_missing_output_folders_are_made(folder: Path) -> None:
    in_process("quantize", "m.onnx", "--data", "data", "-p", "XINT8", "-o", "new/folder/out.onnx")
    assert Path("new/folder/out.onnx").is_file()


def test_last_line_is_the_next_command_for_this_model(folder: Path) -> None:
    lines = in_process("quantize", "m.onnx", "--data", "data", "--preset", "S8S8_AAWS", "--store", "none").splitlines()
    assert "the float model: the error is" in lines[-3]
    assert lines[-2] == "wrote m.S8S8_AAWS.onnx"
    # It runs as it is once the labels are there.
    words = lines[-1].partition("quantry ")[2].split()
    Path("labels.csv").write_text("".join(f"{index}.npy,0\n" for index in range(len(images()))))
    assert in_process(*words)


def test_next_command_for_images_in_one_folder_per_class_needs_no_labels(folder: Path) -> None:
    for index, name in enumerate(("0", "1")):
        Path("classes", name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), 100 * index, np.uint8)).save(Path("classes", name, "a.png"))
    given = ("--data", "classes", "--preset", "S8S8_AAWS", "--store", "none", "--pixel-scale", "1/255")
    lines = in_process("quantize", "m.onnx", *given).splitlines()
    assert lines[-1].endswith("--metric top1")
    assert in_process(*lines[-1].partition("quantry ")[2].split())


@pytest.mark.parametrize("name", ["quantize", "search", "diagnose"])
def test_help_names_a_type_only_where_an_option_takes_a_value(name: str) -> None:
    text = in_process(name, "--help")
    assert "bool" not in text.lower()
    assert "Images" in text
