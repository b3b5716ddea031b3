"""Write reports to files."""

import os
import tempfile
import time
from pathlib import Path

from quantry.autosearch import SearchResult
from quantry.diagnosis import Diagnosis, diagnose
from quantry.errors import StoreError
from quantry.memo import TraceEntry
from quantry.quantization import QuantizationResult
from quantry.report.facts import collect_facts
from quantry.report.page import render_page
from quantry.report.search_page import render_search_page


def write_report(
    result: QuantizationResult, path: str | os.PathLike[str], title: str | None = None, samples: int = 4
) -> Path:
    """Write an HTML page that shows what was done, and where and why accuracy was lost.

    Args:
        result: The result of `quantry.quantize`.
        path: The file; its folders are created, and an existing file is replaced atomically.
        title: The heading; None uses the graph's name.
        samples: Number of evaluation samples to run for the error along the graph.

    Returns:
        The path.

    Raises:
        StoreError: The file cannot be written.
    """
    heading = title or result.model.graph.name or "model"
    return _write(render_page(collect_facts(result, _diagnosed(result, samples), heading)), Path(path))


def _diagnosed(result: QuantizationResult, samples: int) -> Diagnosis:
    """Diagnose the result, and add the time to the trace, because both models run again."""
    started = time.perf_counter()
    diagnosis = diagnose(result, samples)
    digest = result.stages.quantized.digest
    result.trace.add(TraceEntry("diagnose", digest, "computed", time.perf_counter() - started, digest))
    return diagnosis


def write_search_report(result: SearchResult, path: str | os.PathLike[str], title: str = "search") -> Path:
    """Write an HTML page about a search: every trial, the best configuration, the effect of parameters, the cost.

    Args:
        result: The result of `quantry.search`.
        path: The file; its folders are created, and an existing file is replaced atomically.
        title: The heading, usually the model's file name.

    Returns:
        The path.

    Raises:
        StoreError: The file cannot be written.
    """
    return _write(render_search_page(result, title), Path(path))


def _write(page: str, target: Path) -> Path:
    written: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as partial:
            written = Path(partial.name)
            partial.write(page)
        written.chmod(0o644)
        written.replace(target)
    except OSError as error:
        raise StoreError(f"the report must be written to a writable path, got {error}; in {target}") from error
    finally:
        if written is not None:
            written.unlink(missing_ok=True)
    return target
