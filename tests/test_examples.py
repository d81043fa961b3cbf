"""The examples that learn ask for their runs as these are asked for."""

import inspect
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espalier.runs import Settings
from espalier.runs.many import run_many

EXAMPLES = Path(__file__).parent.parent / "examples"
METRICS = {"avg_accuracy": 0.5, "last_task_accuracy": 0.25, "forgetting": -0.125, "lca": 0.125, "memory_mb": 1.0}


@pytest.mark.parametrize(
    ("example", "arguments", "wanted"),
    [
        ("search_spaces", ["s_in_mini", "--spaces", "suffix", "--seeds", "2"], 2),
        ("plus_parts", ["s_in_mini", "s_pl_mini", "--seeds", "1"], 10),
        ("one_rate", ["finetune", "er"], 4),
    ],
)
def test_its_runs_are_asked_for_with_the_device_that_was_named(
    example: str,
    arguments: list[str],
    wanted: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    asked: list[Settings] = []

    def seen(*given: Any, **named: Any) -> Iterator[tuple[Settings, dict[str, Any]]]:
        all_given = inspect.signature(run_many).bind(*given, **named).arguments
        assert (all_given["device"], all_given["out"], all_given["workers"]) == ("cuda:1", tmp_path, 3)
        for settings, own in all_given["jobs"]:
            assert callable(own.learn)
            asked.append(settings)
            yield settings, {"metrics": METRICS, "seconds": 2.0}

    monkeypatch.setattr("espalier.runs.many.run_many", seen)
    monkeypatch.delitem(sys.modules, "search_spaces", raising=False)  # plus_parts imports it
    where = ["--device", "cuda:1", "--workers", "3", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [example, *arguments, *where])
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    assert len(asked) == len(set(asked)) == wanted
    assert "0.500" in capsys.readouterr().out
