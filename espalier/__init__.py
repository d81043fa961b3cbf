"""Espalier: continual learning with modular networks."""

from espalier.data import DataFolder, Dataset, ImageSet, as_dataset, from_csv, from_folder
from espalier.errors import InputError, MissingDataError
from espalier.evaluation import pictures, predict
from espalier.library import Library
from espalier.runs import Settings, rebuild, run, teach
from espalier.streams import STREAMS, Stream, Task, TaskSpec, add_stream, stream
from espalier.version import __version__

__all__ = [
    "STREAMS",
    "DataFolder",
    "Dataset",
    "ImageSet",
    "InputError",
    "Library",
    "MissingDataError",
    "Settings",
    "Stream",
    "Task",
    "TaskSpec",
    "__version__",
    "add_stream",
    "as_dataset",
    "from_csv",
    "from_folder",
    "pictures",
    "predict",
    "rebuild",
    "run",
    "stream",
    "teach",
]
