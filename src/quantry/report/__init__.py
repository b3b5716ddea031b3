"""Reports: the facts of a quantization or a search as plain data, and as one HTML file."""

from quantry.report.facts import ReportFacts, collect_facts
from quantry.report.page import render_page
from quantry.report.search_page import render_search_page
from quantry.report.write import write_report, write_search_report

__all__ = [
    "ReportFacts",
    "collect_facts",
    "render_page",
    "render_search_page",
    "write_report",
    "write_search_report",
]
