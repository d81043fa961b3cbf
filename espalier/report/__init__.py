"""Finished runs as tables, pictures and one HTML page: pure functions of run folders. Knows nothing about training."""

from espalier.report.page import page, write_page
from espalier.report.picture import library_svg
from espalier.report.published import published_figures
from espalier.report.runs import Finished, read_runs, summary
from espalier.report.table import ResultTable, tables

__all__ = [
    "Finished",
    "ResultTable",
    "library_svg",
    "page",
    "published_figures",
    "read_runs",
    "summary",
    "tables",
    "write_page",
]
