"""Start a run by its learner's name, or the parts of one. Knows nothing about processes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import LEARNERS, Learner, entry
from espalier.learners.options import described
from espalier.runs.loop import run_in
from espalier.runs.order import Order, Watch
from espalier.runs.settings import Settings
from espalier.runs.tuned import begin_tuned, run_tuned, try_value
from espalier.streams import stream
from espalier.training import protocol

Data = DataFolder | str | Path | None
Part = Callable[[Settings, Path, Data, str], Any]  # called with where runs go, the images, and the device


def run(
    settings: Settings,
    out: Path | str = "runs",
    data: Data = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
    own_learner: Learner | None = None,
) -> dict[str, Any]:
    """Do the run, or what is left of it, and return its result. A finished run is not done again.

    `own_learner` is used in place of the learner that `settings.learner` names.
    """
    if not isinstance(settings, Settings):
        raise InputError(f"{settings!r} is no Settings; give run what Settings.of(stream, learner) makes.")
    order, field = _order(settings, Path(out), data, device, watch, own_learner), _tuned(settings, own_learner)
    return run_in(order) if field is None else run_tuned(order, field)


def stages(settings: Settings, out: Path, own_learner: Learner | None = None) -> list[list[Part]]:
    """A run as parts: those of a stage may go side by side, once all of the stage before are done. The last stage is
    one part, which returns the result."""
    last: list[Part] = [partial(run, own_learner=own_learner)]
    field = _tuned(settings, own_learner)
    if field is None or (out / settings.folder_name / "result.json").is_file():
        return [last]
    values = protocol(settings.protocol).strengths
    return [[partial(_begin, field)], [partial(_try, field, value) for value in values], last]


def _begin(field: str, settings: Settings, out: Path, data: Data, device: str) -> None:
    begin_tuned(_order(settings, out, data, device), field)


def _try(field: str, value: float, settings: Settings, out: Path, data: Data, device: str) -> None:
    try_value(_order(settings, out, data, device), field, value)


def _tuned(settings: Settings, own_learner: Learner | None) -> str | None:
    """The learner's value that is chosen on the whole stream, if there is one."""
    return entry(settings.learner).tuned if own_learner is None else None


def _order(
    settings: Settings,
    out: Path,
    data: Data,
    device: str,
    watch: Watch = lambda moment: None,
    own_learner: Learner | None = None,
) -> Order:
    learner, tasks = _learner(settings, own_learner), stream(settings.stream, settings.seed, data)
    return Order(out / settings.folder_name, settings, learner, tasks, device, watch)


def _learner(settings: Settings, own: Learner | None) -> Learner:
    """A name that the paper's figures stand beside in tables is that of the paper's learner, with its values."""
    if own is None:
        return entry(settings.learner).learner
    if isinstance(own, type) or not hasattr(own, "learn"):
        raise InputError(f"{own!r} is no learner; give an object that has a method learn(lesson).")
    known = LEARNERS.get(settings.learner)
    if known is not None and (known.tuned or described(own) != described(known.learner)):
        whole = f"{described(known.learner)}{f', its {known.tuned} chosen on the stream' if known.tuned else ''}"
        raise InputError(
            f"{settings.learner!r} names {whole}, not {described(own)}; give your learner another name in its settings."
        )
    return own
