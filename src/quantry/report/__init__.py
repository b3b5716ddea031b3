"""Reports: the facts of a quantization or a search as plain data, and as one HTML file."""

from quantry.report.facts import ReportFacts, collect_facts
from quantry.report.live_server import LiveServer
from quantry.report.page import render_page
from quantry.report.search_page import render_search_page
from quantry.report.write import (
    render_folders,
    write_folder_report,
    write_pair_report,
    write_report,
    write_search_report,
)

__all__ = [
    "LiveServer",
    "ReportFacts",
    "collect_facts",
    "render_folders",
    "render_page",
    "render_search_page",
    "write_folder_report",
    "write_pair_report",
    "write_report",
    "write_search_report",
]
