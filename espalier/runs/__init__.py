"""One run: a learner on a stream with a seed."""

from espalier.runs.order import Moment, Watch
from espalier.runs.rebuilt import rebuild
from espalier.runs.run import run
from espalier.runs.settings import Settings
from espalier.runs.taught import teach

__all__ = ["Moment", "Settings", "Watch", "rebuild", "run", "teach"]
