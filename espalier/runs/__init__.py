"""One run: a learner on a stream with a seed."""

from espalier.runs.run import Moment, Settings, run

__all__ = ["Moment", "Settings", "run"]
