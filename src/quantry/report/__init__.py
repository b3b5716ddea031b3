"""What happened, on one page: facts as plain data, and one HTML file that shows them."""

from quantry.report.facts import ReportFacts, collect_facts
from quantry.report.page import render_page
from quantry.report.write import write_report

__all__ = ["ReportFacts", "collect_facts", "render_page", "write_report"]
