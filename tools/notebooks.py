"""Runs the notebooks of the documentation in a temporary folder, and stores their output: make notebooks."""

import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
_PLAIN = 200


def main() -> None:
    """Run the notebooks that are named, or all."""
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        book = nbformat.read(path, as_version=4)
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            # Without times of execution: a run that finds the same writes the same file.
            nbclient.NotebookClient(
                book, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}
            ).execute()
            _shorten(book)
            text = nbformat.writes(book).replace(folder, "").replace(str(ROOT), "")
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - started:.0f} s")


def _shorten(book: nbformat.NotebookNode) -> None:
    """Leave out progress bars that were removed, and long plain texts that only stand in for HTML."""
    for cell in (cell for cell in book.cells if cell.cell_type == "code"):
        cell.metadata.pop("execution", None)
        cell.outputs = [output for output in cell.outputs if output.get("data", {}).get("text/html") != ""]
        for data in (output.data for output in cell.outputs if "text/html" in output.get("data", {})):
            data["text/plain"] = data.get("text/plain", "")[:_PLAIN]


if __name__ == "__main__":
    main()
