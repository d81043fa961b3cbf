"""A run that is asked for. Knows nothing about how it is done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.learners import Learner
from espalier.runs.settings import Settings
from espalier.streams import Stream


@dataclass(frozen=True)
class Moment:
    """Where a run stands, for a progress display."""

    task: int
    tasks: int
    step: int = 0
    most_steps: int = 0
    members: int = 0
    best: float = 0.0


Watch = Callable[[Moment], None]


@dataclass(frozen=True, eq=False)
class Order:
    """A run that is asked for: what, where, on which tasks, and who watches."""

    folder: Path
    settings: Settings
    learner: Learner
    stream: Stream
    device: str
    watch: Watch
    judged_on_val: bool = False  # the result has the mean validation accuracy on all tasks at the end, too
    same_images: bool = True  # of tasks that were learned before; lessons that come one by one bring their own
    rebuilt_from: Mapping[str, Any] | None = None  # versions and hardware of the run whose choices are trained again
