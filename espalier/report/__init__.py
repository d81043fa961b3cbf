"""Finished runs as tables, pictures and one HTML page: pure functions of run folders. Knows nothing about training."""

from espalier.report.page import page, write_page
from espalier.report.picture import library_svg
from espalier.report.published import Published, published_figures
from espalier.report.records import gather, read_recorded
from espalier.report.runs import Finished, Module, Row, TaskColumn, read_runs, summary
from espalier.report.table import ResultTable, tables

__all__ = [
    "Finished",
    "Module",
    "Published",
    "ResultTable",
    "Row",
    "TaskColumn",
    "gather",
    "library_svg",
    "page",
    "published_figures",
    "read_recorded",
    "read_runs",
    "summary",
    "tables",
    "write_page",
]
