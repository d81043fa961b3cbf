"""`result.json`: what a finished run came to. Knows how to read it, and what it must hold."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.files import read_json

WORDS = ("stream", "learner", "backbone", "protocol")
FIGURES = ("avg_accuracy", "forgetting", "lca", "memory_mb", "tflops")


def read_result(path: Path) -> dict[str, Any]:
    result = read_table(path)
    try:
        _check(result)
    except ValueError as error:
        raise damaged_result(path, str(error)) from None
    return result


def damaged_result(path: Path, what: str) -> InputError:
    cure = "remove it and give the same command again: what was learned is kept."
    return InputError(f"{path} is damaged ({what}); {cure}")


def read_table(path: Path) -> dict[str, Any]:
    """A file of JSON that must hold names and values."""
    try:
        table = read_json(path)
    except RecursionError:
        table = None
    if not isinstance(table, dict):
        raise InputError(f"{path} is damaged (it is not a table of values); restore it from a copy.")
    return table


def _check(result: Mapping[str, Any]) -> None:
    for key in WORDS:
        if not isinstance(result.get(key), str):
            raise ValueError(f"{key!r} is not text")
    if type(result.get("seed")) is not int or type(result.get("data_complete")) is not bool:
        raise ValueError("'seed' or 'data_complete' is not what it should be")
    metrics = result.get("metrics")
    if not isinstance(metrics, dict) or not all(_is_number(metrics.get(key)) for key in FIGURES):
        raise ValueError(f"'metrics' does not hold the numbers {', '.join(FIGURES)}")
    if not _is_number(result.get("seconds")):
        raise ValueError("'seconds' is not a number")
    matrix = result.get("accuracy")
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        raise ValueError("'accuracy' is not a list of rows")
    if not matrix or [len(row) for row in matrix] != list(range(1, len(matrix) + 1)):
        raise ValueError("'accuracy' does not have a row for each task, each longer by one")
    if not all(_is_number(value) and 0 <= value <= 1 for row in matrix for value in row):
        raise ValueError("'accuracy' holds something that is not between 0 and 1")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
