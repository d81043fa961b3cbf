"""Records: what is whole is read, and what is on record is on the disk before what depends on it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from espalier.files import write_json
from espalier.learners.independent import Independent
from espalier.library import Library
from espalier.runs import run
from espalier.runs.loop import begin_in, run_in
from espalier.runs.order import Order
from espalier.runs.records import Records
from espalier.streams import stream
from tests.small_streams import install, settings

install()


def test_a_torn_last_record_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"event": "a"}\n{"event": "b"}\n{"eve')
    records = Records(path)
    assert [e["event"] for e in records.events] == ["a", "b"]
    records.trim()
    assert path.read_text() == '{"event": "a"}\n{"event": "b"}\n'


def test_nothing_is_written_where_nothing_is_to_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"event": "a"}\n{"event":"b"}\n')
    before = path.stat().st_ino
    records = Records(path)
    records.trim()
    assert path.stat().st_ino == before
    records = Records(path, lambda event: event["event"] == "a")
    records.trim()
    assert path.read_text() == '{"event": "a"}\n'
    Records(tmp_path / "new.jsonl").trim()
    assert (tmp_path / "new.jsonl").read_text() == ""


def test_what_a_power_cut_left_unwritten_is_dropped(tmp_path: Path) -> None:
    """A page of zeros, though the next one reached the disk."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"event": "a"}\n{"ev' + bytes(20) + b'\n{"event": "c"}\n')
    records = Records(path)
    assert [e["event"] for e in records.events] == ["a"]
    records.trim()
    assert path.read_text() == '{"event": "a"}\n'


def test_records_reach_the_disk_before_what_depends_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*given: Any, **named: Any) -> Any:
            done.append(f"{name} {given[1]}" if name == "append" else name)
            return work(*given, **named)

        return noting

    monkeypatch.setattr(Records, "append", noted("append", Records.append))
    monkeypatch.setattr(Records, "settle", noted("settle", Records.settle))
    monkeypatch.setattr(Library, "commit", noted("commit", Library.commit))
    monkeypatch.setattr(import_module(run_in.__module__), "write_json", noted("json", write_json))
    run(settings("independent"), tmp_path)
    order = [event for event in done if event not in ("append candidate", "append trained")]
    assert order == ["json"] + ["settle", "commit", "append learned", "append evaluated"] * 4 + ["settle", "json"]
    done.clear()
    unwatched = Order(
        tmp_path / "other", settings("independent"), Independent(), stream("small_mini"), "cpu", lambda moment: None
    )
    begin_in(unwatched)
    assert done[-2:] == ["append evaluated", "settle"]
