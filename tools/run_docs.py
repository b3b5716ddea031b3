"""Runs the code of the documentation, page by page, on the small models of docs_folder.py in a temporary folder.

The Python blocks of a page share their names, as in a notebook. Commands of shell blocks run one after the other; a
search gets two trials and `auto` low effort, so that a page takes seconds. A comment in front of a block changes that::

    <!-- docs: skip, needs a server -->        the block is only checked by check_docs.py
    <!-- docs: in detection -->                the block runs in this subfolder of the prepared folder
"""

import argparse
import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import check_docs
import docs_folder

ROOT = check_docs.ROOT
_BLOCK = re.compile(r"(?:<!-- docs: ([^>]*?) -->\s*\n)?^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = ("", "sh", "bash", "console")
_TRIALS = 2

# Run by tests/test_docs_extend.py together with the conformance suites.
_ELSEWHERE = ("docs/extend/",)


class Block(NamedTuple):
    """A code block: what its comment says, its language and its content."""

    comment: str
    language: str
    content: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page that run."""
    for comment, language, content in _BLOCK.findall(page.read_text(encoding="utf-8")):
        block = Block(comment, language, content)
        is_code = language == "python" or (language in _SHELL and any(check_docs.commands(content)))
        if is_code and not comment.startswith("skip"):
            yield block


def run_page(page: Path) -> None:
    """Run the blocks of a page in the current folder; raises where one fails."""
    names: dict[str, Any] | None = None
    start = Path.cwd()
    for block in blocks(page):
        os.chdir(start / block.comment.removeprefix("in ") if block.comment.startswith("in ") else start)
        if block.language == "python":
            names = names or _names()
            # A real file, so that worker processes and tracebacks find the source.
            code = compile(block.content, f"{page.relative_to(ROOT)}", "exec")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, names)
        else:
            for words in check_docs.commands(block.content):
                _run_command(words)


def _run_command(words: list[str]) -> None:
    from quantry.cli.app import app

    limits = {"search": ("--n-trials", str(_TRIALS)), "quantize": ("--effort", "low")}
    option = limits.get(words[0])
    uses_auto = words[0] != "quantize" or not {"--recipe", "--preset", "-r", "-p"} & set(words)
    extra = [*option] if option is not None and option[0] not in words and uses_auto else []
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            # Without standalone mode an exit code is returned, not raised.
            code = app([*words, *extra], standalone_mode=False)
            raise SystemExit(code or 0)
    except SystemExit as error:
        # 3 says that a result is not good enough, which no one expects of random weights.
        if error.code not in (0, 3, None):
            raise RuntimeError(f"quantry {' '.join(words)} ended with {error.code}\n{said.getvalue()}") from error
    except Exception as error:
        raise RuntimeError(f"quantry {' '.join(words)}: {type(error).__name__} {error}\n{said.getvalue()}") from error


def _names() -> dict[str, Any]:
    """Return what the blocks use without defining it: data, a reader, an evaluator."""
    import numpy as np

    import quantry
    from quantry.recipe import find_preset

    pictures = np.load("images.npy")[:8]
    data = [picture[None] for picture in pictures]

    def score(path: Any) -> float:
        from quantry.graph.load import model_source
        from quantry.runtime.sessions import run_session, simulation_session

        session = simulation_session(model_source(path).load())
        return float(np.mean([run_session(session, {"images": one})["scores"].max() for one in data]))

    _limit(quantry)
    labels = np.load("labels.npy")[:8]
    given = {"data": data, "reader": data, "score": score, "evaluator": score, "my_top1": score, "labels": labels}
    return {**given, "quantry": quantry, "np": np, "recipe": find_preset("XINT8").recipe, "__name__": "__main__"}


def _limit(quantry: Any) -> None:
    """Give searches two trials, and `auto` low effort."""
    search, quantize = quantry.search, quantry.quantize
    quantry.search = functools.partial(search, n_trials=_TRIALS)
    quantry.quantize = lambda *given, **named: quantize(
        *given, **({"effort": "low"} if len(given) < 3 and "recipe" not in named else {}), **named
    )


def main() -> None:
    """Run all pages, or the given ones; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--here", action="store_true", help="run one page in the current folder")
    options = parser.parse_args()
    if options.here:
        run_page(options.pages[0])
        return
    everything = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = [page.resolve() for page in options.pages] or [
        page for page in everything if not str(page.relative_to(ROOT)).startswith(_ELSEWHERE) and any(blocks(page))
    ]
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        template = Path(temporary) / "template"
        template.mkdir()
        docs_folder.prepare(template)
        docs_folder.prepare_results(template)
        for page in pages:
            failed += [] if _run_apart(page, template, Path(temporary)) else [page]
    print(f"ran {len(pages)} pages, {len(failed)} failed")
    sys.exit(bool(failed))


def _run_apart(page: Path, template: Path, temporary: Path) -> bool:
    """Run a page in its own process and its own copy of the prepared folder; return whether it works."""
    folder = Path(tempfile.mkdtemp(dir=temporary)) / "work"
    shutil.copytree(template, folder)
    started = time.perf_counter()
    command = [sys.executable, str(Path(__file__).resolve()), "--here", str(page)]
    environment = {**os.environ, "QUANTRY_CACHE": str(folder.parent / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    seconds = time.perf_counter() - started
    print(f"{'ok    ' if done.returncode == 0 else 'FAILED'} {page.relative_to(ROOT)} ({seconds:.0f} s)", flush=True)
    if done.returncode:
        print("\n".join(done.stderr.splitlines()[-25:]))
    return done.returncode == 0


if __name__ == "__main__":
    try:
        main()
    except SystemExit:
        raise
    except Exception:
        traceback.print_exc()
        sys.exit(1)
