"""The streams of tasks: CTrL's, the two classic ones, and mini versions on embedded images."""

from espalier.streams.registry import STREAMS, Stream, add_stream, stream
from espalier.streams.task import Task, TaskSpec, build_task

__all__ = ["STREAMS", "Stream", "Task", "TaskSpec", "add_stream", "build_task", "stream"]
