"""One run: a learner on a stream with a seed."""

from espalier.runs.run import Moment, Settings, Watch, run

__all__ = ["Moment", "Settings", "Watch", "run"]
