"""The data folder: which datasets are there, and how each is read. Knows nothing about streams or tasks.

A dataset is looked for under its name: images added in Python first, then `<folder>/<name>/pack.json` (an
image-pack), then the official files in `<folder>/<name>/`, then the embedded sets, which are always there. Complete
official files go before a pack that is only a part.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from espalier.data.embedded import DESCRIPTIONS, EMBEDDED, embedded, embedded_classes
from espalier.data.imageset import Dataset, ImageSet
from espalier.data.official import OFFICIAL
from espalier.data.pack import describe_pack, read_pack
from espalier.data.pools import Pools, cut_pools
from espalier.errors import InputError, MissingDataError

# Some copies of CIFAR-100 shorten the names of its five tree classes.
_OFFICIAL_NAMES = {"cifar100": {tree: f"{tree}_tree" for tree in ("maple", "oak", "palm", "pine", "willow")}}


@dataclass(frozen=True)
class Holding:
    """What is there of a dataset, found out without reading its images."""

    name: str
    state: str  # "complete", "partial" or "missing"
    source: str  # "added", "pack", "official files", "embedded" or ""
    class_names: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    note: str = ""
    size: int = 0  # how high its images are, where that is known


def default_folder(folder: str | Path | None = None) -> Path:
    """`folder` if given, else the environment's ESPALIER_DATA, else `espalier` in the user's cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    if os.environ.get("ESPALIER_DATA"):
        return Path(os.environ["ESPALIER_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "espalier"


class DataFolder:
    """Datasets by name. What tasks are made from (`pools`) is kept in memory once read."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.path = default_folder(folder)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a data folder; name another with --data.")
        self._added: dict[str, Dataset] = {}
        self._pools: dict[tuple[str, int], Pools] = {}

    def add(self, dataset: Dataset) -> None:
        """Make a dataset in memory known by its name, for as long as this object lives."""
        self._added[dataset.name] = dataset
        self._pools = {key: pools for key, pools in self._pools.items() if key[0] != dataset.name}

    def names(self) -> list[str]:
        """All names that mean something here: the paper's datasets, the embedded ones, the user's packs."""
        packs = sorted(p.parent.name for p in self.path.glob("[!.]*/pack.json"))
        return list(dict.fromkeys([*OFFICIAL, *EMBEDDED, *packs, *self._added]))

    def holding(self, name: str) -> Holding:
        if name in self._added:
            return _held(self._added[name], "added")
        if name in ("", "..") or name != Path(name).name:
            raise InputError(
                f"{name!r} is a path, not the name of a dataset; 'espalier data pack {name}' makes a dataset of the "
                f"pictures in a folder."
            )
        pack = self._pack_holding(name)
        if pack is not None and pack.state == "complete":
            return pack
        if name in OFFICIAL:
            official = self._official_holding(name)
            return official if pack is None or official.state == "complete" else pack
        if pack is not None:
            return pack
        if name in EMBEDDED:
            return Holding(name, "complete", "embedded", embedded_classes(name), note=DESCRIPTIONS[name])
        raise InputError(
            f"there is no dataset {name!r} in {self.path}; known are {', '.join(self.names())}; 'espalier data pack' "
            f"makes one of your own pictures."
        )

    def has(self, name: str) -> bool:
        """Whether any image of a dataset is there."""
        return name in self.names() and self.holding(name).state != "missing"

    def load(self, name: str) -> Dataset:
        """The whole dataset, read anew."""
        held = self.holding(name)
        if held.source == "added":
            return self._added[name]
        if held.source == "pack":
            return _with_official_names(name, read_pack(self.path / name))
        if held.source == "embedded":
            return embedded(name)
        if held.state == "missing":
            raise MissingDataError(
                f"dataset {name!r} is not in {self.path} ({held.note}); run 'espalier data fetch {name}', "
                f"or name the folder that holds it with --data or ESPALIER_DATA."
            )
        return OFFICIAL[name].read(self.path / name)

    def pools(self, name: str, size: int) -> Pools:
        """The train, val and test pools of a dataset, its images at that size: the same for every stream and seed."""
        if (name, size) not in self._pools:
            self._pools[name, size] = cut_pools(self.load(name), size)
        return self._pools[name, size]

    def class_names(self, name: str) -> tuple[str, ...]:
        """The classes that are there; of a dataset of the paper that is missing, its official ones."""
        return self.holding(name).class_names or OFFICIAL[name].class_names

    def _pack_holding(self, name: str) -> Holding | None:
        if not (self.path / name / "pack.json").is_file():
            return None
        info = describe_pack(self.path / name)
        state = "complete" if info.complete else "partial"
        names = _official_names(name, info.class_names)
        return Holding(name, state, "pack", names, dict(info.counts), info.note, info.image[0])

    def _official_holding(self, name: str) -> Holding:
        official, folder = OFFICIAL[name], self.path / name
        lacking = [f.name for f in official.files if not (folder / f.name).is_file()]
        if lacking:
            pickled = [f"; {p.name} is the pickled version and is not read" for p in folder.glob("*-python.tar.gz")]
            return Holding(name, "missing", "", note=f"lacking {', '.join(lacking)}" + "".join(pickled))
        sizes = [(folder / f.name).stat().st_size == f.size for f in official.files]
        if all(sizes):
            return Holding(name, "complete", "official files", official.class_names, dict(official.counts))
        note = "a file has not its official size; 'espalier data verify' looks inside"
        return Holding(name, "partial", "official files", official.class_names, {}, note)


def _held(dataset: Dataset, source: str) -> Holding:
    state = "complete" if dataset.complete else "partial"
    counts = {name: len(split) for name, split in dataset.splits.items()}
    size = next(iter(dataset.splits.values())).images.shape[1]
    return Holding(dataset.name, state, source, dataset.class_names, counts, dataset.note, size)


def _official_names(name: str, classes: tuple[str, ...]) -> tuple[str, ...]:
    renamed = _OFFICIAL_NAMES.get(name, {})
    return tuple(renamed.get(c, c) for c in classes)


def _with_official_names(name: str, dataset: Dataset) -> Dataset:
    names = _official_names(name, dataset.class_names)
    splits = {key: ImageSet(s.images, s.labels, names) for key, s in dataset.splits.items()}
    return Dataset(name, splits, dataset.complete, dataset.note)
