"""Choosing the classes of a task. Knows nothing about which stream it is for."""

from espalier.data.folder import DataFolder
from espalier.data.official import OFFICIAL
from espalier.errors import InputError
from espalier.seeds import generator


def choose_classes(data: DataFolder, dataset: str, count: int, seed: int, *place: str | int) -> tuple[str, ...]:
    """`count` classes in random order. Of a dataset that is partly there, the first of that order that are there."""
    present = data.class_names(dataset)
    names = OFFICIAL[dataset].class_names if dataset in OFFICIAL else present
    order = generator(seed, *place, "classes").permutation(len(names))
    chosen = [names[i] for i in order if names[i] in present][:count]
    if len(chosen) < count:
        raise InputError(
            f"{count} classes of {dataset!r} are needed and {len(chosen)} are there; fetch the whole dataset with "
            f"'espalier data fetch {dataset}'."
        )
    return tuple(chosen)
