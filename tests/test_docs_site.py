"""The documentation site: every documented command parses, and the site builds without a broken link."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_code_of_all_pages_is_sound() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_docs.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_check_finds_a_wrong_option_and_a_syntax_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_docs

    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```\nquantry quantize m.onnx --dta images\n```\n\n```python\nx = (\n```\n", encoding="utf-8")
    wrong, syntax = check_docs.problems(page)
    assert "--dta" in wrong
    assert "never closed" in syntax


def test_site_builds_with_generated_pages_and_sound_links(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    assert "quantry cache prune" in commands
    fields = (tmp_path / "site" / "reference" / "recipe" / "index.html").read_text(encoding="utf-8")
    assert "sigmoid_to_hard_sigmoid" in fields
    assert (tmp_path / "site" / "notebooks" / "detector" / "index.html").exists()
    benchmarks = (tmp_path / "site" / "benchmarks" / "index.html").read_text(encoding="utf-8")
    assert benchmarks.count("<svg viewBox") >= 5


def test_code_of_a_page_runs_and_a_failing_block_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import docs_folder
    import run_docs

    docs_folder.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_docs, "ROOT", tmp_path)
    monkeypatch.setattr(run_docs, "_limit", lambda _: None)
    page = tmp_path / "page.md"
    quantizes = 'quantry.quantize("model.onnx", data, "XINT8").save("new.onnx")'
    page.write_text(f"```python\n{quantizes}\n```\n\n```\nquantry check new.onnx\n```\n", encoding="utf-8")
    run_docs.run_page(page)
    assert (tmp_path / "new.onnx").exists()
    page.write_text("```\nquantry nodes nowhere.onnx\n```\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"nowhere\.onnx"):
        run_docs.run_page(page)
    page.write_text("<!-- docs: skip, as an example -->\n```\nquantry nodes nowhere.onnx\n```\n", encoding="utf-8")
    run_docs.run_page(page)
