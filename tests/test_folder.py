from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from espalier import DataFolder, Dataset, ImageSet, InputError, MissingDataError
from espalier.data import read_pack, write_pack
from espalier.data.folder import default_folder
from espalier.data.official import OFFICIAL
from espalier.streams.choice import choose_classes
from tests.fakes import fake_dataset
from tests.official_files import write_cifar10, write_mnist


def test_the_folder_is_the_argument_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_folder(tmp_path / "argument") == tmp_path / "argument"
    assert default_folder() == tmp_path / "variable"
    monkeypatch.delenv("ESPALIER_DATA")
    assert default_folder() == tmp_path / "cache" / "espalier"


def test_a_missing_dataset_is_told_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="espalier data fetch svhn"):
        DataFolder(tmp_path).load("svhn")
    with pytest.raises(InputError, match="no dataset 'nonsense'"):
        DataFolder(tmp_path).load("nonsense")


def test_the_pickled_cifar_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").write_bytes(b"anything")
    with pytest.raises(MissingDataError, match=r"cifar-10-python.tar.gz is the pickled version"):
        DataFolder(tmp_path).load("cifar10")


def test_official_files_and_packs_give_the_same_images(tmp_path: Path) -> None:
    for folder in ("mnist", "cifar10"):
        (tmp_path / "official" / folder).mkdir(parents=True)
    write_mnist(tmp_path / "official" / "mnist", 40, 20)
    write_cifar10(tmp_path / "official" / "cifar10", 40, 20)
    for name in ("mnist", "cifar10"):
        official = DataFolder(tmp_path / "official").load(name)
        assert not official.complete
        write_pack(official, tmp_path / "packs" / name)
        packed = DataFolder(tmp_path / "packs").load(name)
        for split in official.splits:
            assert np.array_equal(packed.splits[split].images, official.splits[split].images)
            assert np.array_equal(packed.splits[split].labels, official.splits[split].labels)
        assert (packed.complete, packed.note) == (official.complete, official.note)


def test_a_pack_goes_before_partial_official_files_and_after_complete_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = replace(fake_dataset("mnist"), complete=False)
    write_pack(part, tmp_path / "mnist")
    write_mnist(tmp_path / "mnist", 20)
    assert DataFolder(tmp_path).holding("mnist").source == "pack"
    files = tuple(replace(f, size=(tmp_path / "mnist" / f.name).stat().st_size) for f in OFFICIAL["mnist"].files)
    monkeypatch.setitem(OFFICIAL, "mnist", replace(OFFICIAL["mnist"], files=files))
    held = DataFolder(tmp_path).holding("mnist")
    assert (held.source, held.state) == ("official files", "complete")


def test_a_complete_pack_tells_its_counts(tmp_path: Path) -> None:
    write_pack(fake_dataset("dtd"), tmp_path / "dtd")
    held = DataFolder(tmp_path).holding("dtd")
    assert (held.source, held.state) == ("pack", "complete")
    assert held.counts == {"train": 1880, "val": 1880, "test": 1880}


def test_short_tree_names_become_the_official_ones(real_data: DataFolder) -> None:
    assert "maple" in read_pack(real_data.path / "cifar100").class_names
    assert "maple_tree" in real_data.class_names("cifar100")
    assert "maple_tree" in real_data.load("cifar100").class_names


def test_of_a_partial_dataset_the_classes_that_are_there_are_chosen(fake_data: DataFolder) -> None:
    whole = choose_classes(fake_data, "dtd", 47, 0, "s_minus", 2)
    kept = set(sorted(whole)[:12])
    full = fake_dataset("dtd")
    names = tuple(n for n in full.class_names if n in kept)
    ids = [full.class_names.index(n) for n in names]
    splits = {}
    for split, images in full.splits.items():
        chosen = np.isin(images.labels, ids)
        splits[split] = ImageSet(images.images[chosen], np.searchsorted(ids, images.labels[chosen]), names)
    partial = DataFolder("/nonexistent")
    partial.add(Dataset("dtd", splits, complete=False, note="12 classes"))
    assert choose_classes(partial, "dtd", 10, 0, "s_minus", 2) == tuple(n for n in whole if n in kept)[:10]
    with pytest.raises(InputError, match="13 classes of 'dtd' are needed and 12 are there"):
        choose_classes(partial, "dtd", 13, 0, "s_minus", 2)


def test_added_images_replace_what_was_read(tmp_path: Path) -> None:
    def images(value: int) -> Dataset:
        pixels = np.full((12, 8, 8, 1), value, np.uint8) + np.arange(12, dtype=np.uint8).reshape(-1, 1, 1, 1)
        labels = np.arange(12) % 2
        whole = ImageSet(pixels, labels, ("a", "b"))
        return Dataset("mine", {"train": whole, "test": ImageSet(pixels + 100, labels, ("a", "b"))})

    folder = DataFolder(tmp_path)
    folder.add(images(10))
    before = folder.pools("mine", 8).images["train"].max()
    folder.add(images(50))
    assert folder.pools("mine", 8).images["train"].max() == before + 40
