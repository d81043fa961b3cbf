"""Start a run by its learner's name, or the parts of one. Knows nothing about processes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.learners import Learner, entry
from espalier.runs.loop import Order, Watch, run_in
from espalier.runs.settings import Settings
from espalier.runs.tuned import begin_tuned, run_tuned, try_value
from espalier.training import protocol

Part = Callable[[Settings, Path, DataFolder, str], Any]  # called with where runs go, the images, and the device


def run(
    settings: Settings,
    out: Path | str = "runs",
    data: DataFolder | str | Path | None = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
    own_learner: Learner | None = None,
) -> dict[str, Any]:
    """Do the run, or what is left of it, and return its result. A finished run is not done again.

    `own_learner` is used in place of the learner that `settings.learner` names.
    """
    if own_learner is not None:
        return run_in(Order(Path(out) / settings.folder_name, settings, own_learner, data, device, watch))
    known = entry(settings.learner)
    order = Order(Path(out) / settings.folder_name, settings, known.learner, data, device, watch)
    return run_in(order) if known.tuned is None else run_tuned(order, known.tuned)


def stages(settings: Settings, own_learner: Learner | None = None) -> list[list[Part]]:
    """A run as parts: those of a stage may go side by side, once all of the stage before are done. The last stage is
    one part, which returns the result."""
    last: list[Part] = [partial(run, own_learner=own_learner)]
    if own_learner is not None or entry(settings.learner).tuned is None:
        return [last]
    return [[_begin], [partial(_try, value) for value in protocol(settings.protocol).strengths], last]


def _begin(settings: Settings, out: Path, data: DataFolder, device: str) -> None:
    begin_tuned(*_tuned(settings, out, data, device))


def _try(value: float, settings: Settings, out: Path, data: DataFolder, device: str) -> None:
    try_value(*_tuned(settings, out, data, device), value)


def _tuned(settings: Settings, out: Path, data: DataFolder, device: str) -> tuple[Order, str]:
    known = entry(settings.learner)
    assert known.tuned is not None
    order = Order(out / settings.folder_name, settings, known.learner, data, device, lambda moment: None)
    return order, known.tuned
