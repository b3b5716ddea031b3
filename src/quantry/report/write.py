"""Write reports to files."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quantry.autosearch import SearchResult
from quantry.diagnosis import Diagnosis, PairDiagnosis, diagnose
from quantry.errors import StoreError
from quantry.evaluate import Latency
from quantry.evaluate.tasks import Decoder
from quantry.files import read_regular, write_file
from quantry.memo import TraceEntry
from quantry.quantization import QuantizationResult
from quantry.report.facts import collect_facts, placement_facts
from quantry.report.page import render_page
from quantry.report.pair_page import render_pair_page
from quantry.report.pictures import changed_images
from quantry.report.search_facts import read_facts
from quantry.report.search_page import render_search_facts, render_search_page


def write_report(
    result: QuantizationResult,
    path: str | os.PathLike[str],
    title: str | None = None,
    *,
    samples: int = 4,
    decoder: Decoder | str | None = None,
    diagnosis: Diagnosis | None = None,
) -> Path:
    """Write an HTML page that shows what was done, and where and why accuracy was lost.

    Args:
        result: The result of `quantry.quantize`.
        path: The file; its folders are created, and an existing file is replaced atomically.
        title: The heading; None uses the graph's name.
        samples: Number of evaluation samples to run for the error along the graph.
        decoder: Converts a detector's outputs to boxes, to draw them: a name such as "yolox", or a callable.
        diagnosis: What is known already, such as that of `quantry.fix` with measured gains; None diagnoses the result.

    Returns:
        The path.

    Raises:
        StoreError: The file cannot be written.
    """
    heading = title or result.model.graph.name or "model"
    facts = collect_facts(result, diagnosis or _diagnosed(result, samples), heading)
    pictures, placement = changed_images(result, decoder), placement_facts(result)
    return _write(render_page(replace(facts, pictures=pictures, placement=placement)), Path(path))


def write_pair_report(
    diagnosis: PairDiagnosis,
    path: str | os.PathLike[str],
    title: str,
    *,
    target: str | None = None,
    latency: Latency | None = None,
) -> Path:
    """Write an HTML page about two models of any tools.

    Args:
        diagnosis: The result of `quantry.diagnosis.diagnose_pair`.
        path: The file; its folders are created, and an existing file is replaced atomically.
        title: The heading, usually both file names.
        target: The target that the second model ran on.
        latency: Times of both.

    Returns:
        The path.

    Raises:
        StoreError: The file cannot be written.
    """
    return _write(render_pair_page(title, diagnosis, target, latency), Path(path))


def _diagnosed(result: QuantizationResult, samples: int) -> Diagnosis:
    """Diagnose the result, and add the time to the trace, because both models run again."""
    started = time.perf_counter()
    diagnosis = diagnose(result, samples)
    digest = result.stages.quantized.digest
    result.trace.add(TraceEntry("diagnose", digest, "computed", time.perf_counter() - started, digest))
    return diagnosis


def write_search_report(result: SearchResult, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write an HTML page about a search: every trial, the best configuration, the effect of parameters, the cost.

    Args:
        result: The result of `quantry.search`.
        path: The file; its folders are created, and an existing file is replaced atomically.
        title: The heading; empty takes the model's file name.

    Returns:
        The path.

    Raises:
        StoreError: The file cannot be written.
    """
    return _write(render_search_page(result, title), Path(path))


def write_folder_report(folders: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of one or several searches, running or finished, from their output directories.

    Args:
        folders: The output directories; the first search is shown in full, the others are compared with it.
        path: The file; None writes ``report.html`` into the first folder.

    Returns:
        The path.

    Raises:
        DataError: A folder has no search.
        StoreError: The file cannot be written.
    """
    target = Path(folders[0]) / "report.html" if path is None else Path(path)
    return _write(render_folders(folders), target)


def render_folders(folders: Sequence[str | os.PathLike[str]]) -> str:
    """Return the page of one or several searches from their output directories.

    Raises:
        DataError: A folder has no search.
    """
    searches = [read_facts(Path(folder)) for folder in folders]
    if len(folders) > 1:
        pairs = zip(searches, folders, strict=True)
        searches = [replace(search, title=f"{search.title} ({folder})") for search, folder in pairs]
    recipe = Path(folders[0]) / "recipe.yaml"
    text = read_regular(recipe).decode() if recipe.exists() else None
    return render_search_facts(searches, text)


def _write(page: str, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, page)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"the report must be written to a writable path, got {error}; in {target}") from error
    return target
