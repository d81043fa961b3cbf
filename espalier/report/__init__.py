"""Finished runs as tables, pictures and one HTML page: pure functions of run folders. Knows nothing about training."""

from espalier.report.page import page, write_page
from espalier.report.picture import library_svg
from espalier.report.runs import Finished, Module, Row, TaskColumn, read_runs, summary

__all__ = ["Finished", "Module", "Row", "TaskColumn", "library_svg", "page", "read_runs", "summary", "write_page"]
