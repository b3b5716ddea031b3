"""What ``quantry search`` prints with ``--json``; imported when a search has ended, because it imports the search."""

import json
from dataclasses import dataclass
from pathlib import Path

from quantry.autosearch import SearchResult, SearchSummary
from quantry.cli.search_advice import Advice


@dataclass(frozen=True, kw_only=True)
class SearchOutput(SearchSummary):
    """A search: the content of search.json, and paths.

    Attributes:
        output_dir: The folder.
        best_model: File of the best model; null if all trials failed.
        best_recipe: File of the best recipe; null if all trials failed.
        report: The HTML report.
    """

    output_dir: Path
    best_model: Path | None
    best_recipe: Path | None
    report: Path


@dataclass(frozen=True, kw_only=True)
class AdvisedSearch(SearchOutput):
    """A search: the content of search.json, paths and advice.

    Attributes:
        advice: What to do next; null if a trial is good enough.
    """

    advice: Advice | None


def search_output(result: SearchResult, report: Path) -> SearchOutput:
    """Return the content of search.json and the paths of the result.

    Args:
        result: The result of the search.
        report: The HTML report.
    """
    summary = json.loads((result.output_dir / "search.json").read_text(encoding="utf-8"))
    names = ("evaluation_share", "output_dir", "best_model", "best_recipe")
    return SearchOutput(**summary, **{name: getattr(result, name) for name in names}, report=report)
