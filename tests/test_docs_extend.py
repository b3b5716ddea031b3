"""The code of every page in docs/extend runs, and passes the suite that the page names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs" / "extend").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_page_is_linked_and_names_a_file_to_create_or_change():
    index = next(page for page in PAGES if page.name == "README.md").read_text()
    for page in PAGES:
        if page.name != "README.md":
            assert f"({page.name})" in index
            assert re.search(r"`(src/quantry/|quantry\.)[\w./]+`", page.read_text()), page


def test_pages_run(tmp_path):
    for page in PAGES:
        code = "\n\n".join(BLOCK.findall(page.read_text()))
        if code:
            (tmp_path / f"test_{page.stem}_page.py").write_text(code)
    files = sorted(tmp_path.glob("test_*_page.py"))
    assert len(files) == len(PAGES) - 1
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stdout[-3000:])
