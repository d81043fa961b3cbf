"""Images: where they come from and how they are kept in memory. Knows nothing about tasks."""

from espalier.data.folder import DataFolder
from espalier.data.imageset import Dataset, ImageSet
from espalier.data.own import as_dataset, from_csv, from_folder
from espalier.data.pack import read_pack, write_pack

__all__ = [
    "DataFolder",
    "Dataset",
    "ImageSet",
    "as_dataset",
    "from_csv",
    "from_folder",
    "read_pack",
    "write_pack",
]
