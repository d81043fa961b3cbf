"""Records: JSON lines appended as things happen. Knows nothing about what they say.

A line that a killed process left half-written is dropped before anything is appended. So is what a power cut left
behind the first byte that never reached the disk, a zero: nothing there was settled.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.files import sync, write_bytes

Event = dict[str, Any]


class Records:
    """The events of a run, in a file. Those that `keep` refuses, and a torn last line, are none; `trim` drops them."""

    def __init__(self, path: Path, keep: Callable[[Event], bool] = lambda event: True) -> None:
        self.path = path
        there, whole = _read(path)
        self.events = [event for event in there if keep(event)]
        self._trimmed = whole and len(self.events) == len(there)

    def trim(self) -> None:
        """The file holds the events alone; to be called before any is appended."""
        if not self._trimmed:
            write_bytes(self.path, "".join(map(_line, self.events)).encode())

    def append(self, event: str, **what: Any) -> None:
        entry = {"event": event, **what}
        self.events.append(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))

    def settle(self) -> None:
        """What was appended so far survives a power cut from here on; on some disks that takes a while."""
        sync(self.path)


def read_records(path: Path) -> list[Event]:
    """All whole lines of a file of records; none if there is no file."""
    return _read(path)[0]


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def _read(path: Path) -> tuple[list[Event], bool]:
    """The events, and whether there is a file that holds nothing else."""
    if not path.exists():
        return [], False
    text, zero, _ = path.read_text(encoding="utf-8", errors="replace").partition("\0")
    lines = text.split("\n")
    try:
        return [_event(line) for line in lines[:-1]], not zero and not lines[-1]
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} is damaged (a line of it is not a record); restore it from a copy, or remove the whole run folder "
            f"to begin anew."
        ) from None


def _event(line: str) -> Event:
    event: Event = json.loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ValueError(line)
    return event


def _line(event: Event) -> str:
    return json.dumps(event, ensure_ascii=False) + "\n"
