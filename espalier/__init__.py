"""Espalier: continual learning with modular networks."""

from espalier.data import DataFolder, Dataset, ImageSet, as_dataset, from_csv, from_folder
from espalier.errors import InputError, MissingDataError
from espalier.streams import STREAMS, Stream, Task, TaskSpec, stream

__version__ = "0.1.0"

__all__ = [
    "STREAMS",
    "DataFolder",
    "Dataset",
    "ImageSet",
    "InputError",
    "MissingDataError",
    "Stream",
    "Task",
    "TaskSpec",
    "as_dataset",
    "from_csv",
    "from_folder",
    "stream",
]
