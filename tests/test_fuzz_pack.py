"""Image-packs against arbitrary datasets and arbitrary damage: a Dataset comes out, or an InputError."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.data.imageset import Dataset, ImageSet
from espalier.data.pack import read_pack, write_pack
from espalier.errors import InputError
from tests.any_json import json_values, places

fuzz = settings(derandomize=True, deadline=None, max_examples=40, database=None)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = json_values(st.text(max_size=5))


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    shape = (draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.sampled_from([1, 3])))
    names = tuple(draw(st.lists(text, min_size=1, max_size=5, unique=True)))
    random = np.random.RandomState(draw(st.integers(0, 2**32 - 1)))
    splits = {}
    for split in draw(st.lists(st.sampled_from(["train", "val", "test"]), min_size=1, unique=True)):
        count = draw(st.integers(1, 70))
        images = random.randint(0, 256, (count, *shape)).astype(np.uint8)
        splits[split] = ImageSet(images, random.randint(0, len(names), count).astype(np.int64), names)
    return Dataset(draw(text), splits, draw(st.booleans()), draw(text))


@fuzz
@given(datasets())
def test_any_dataset_comes_back(dataset: Dataset) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pack"
        write_pack(dataset, path)
        found = read_pack(path)
    assert (found.name, found.class_names, found.complete, found.note) == (
        dataset.name,
        dataset.class_names,
        dataset.complete,
        dataset.note,
    )
    assert list(found.splits) == list(dataset.splits)
    for split, images in dataset.splits.items():
        np.testing.assert_array_equal(found.splits[split].images, images.images)
        np.testing.assert_array_equal(found.splits[split].labels, images.labels)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a good pack."""
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (5, 7, 5, 3)).astype(np.uint8)
    split = ImageSet(images, np.arange(5) % 2, ("a", "b"))
    folder = tmp_path_factory.mktemp("packs") / "good"
    write_pack(Dataset("good", {"train": split, "test": split}), folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def read_damaged(files: dict[str, bytes]) -> bool:
    """Whether a pack of these files can be read; anything but a Dataset or an InputError fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        try:
            dataset = read_pack(Path(folder))
        except InputError as error:
            assert str(error).endswith(".")  # noqa: PT017 - both outcomes are right
            return False
    assert all(len(split) == len(split.labels) for split in dataset.splits.values())
    return True


@settings(fuzz, max_examples=150)
@given(st.data())
def test_any_change_of_pack_json_is_read_or_refused(files: dict[str, bytes], data: st.DataObject) -> None:
    table = json.loads(files["pack.json"])
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(table)))
        if isinstance(container, dict) and data.draw(st.booleans()):
            container.pop(key, None)
        else:
            container[key] = data.draw(VALUES)
    read_damaged({**files, "pack.json": json.dumps(table).encode()})


@settings(fuzz, max_examples=250)
@given(st.data())
def test_any_flipped_bytes_are_read_or_refused(files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4))):
        # Most of the meaning is in the first bytes.
        place = data.draw(st.integers(0, min(63, len(content) - 1)) | st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    read_damaged({**files, name: bytes(content)})


@fuzz
@given(st.data())
def test_any_cut_file_is_refused(files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(set(files) - {"pack.json"})))
    cut = data.draw(st.integers(0, len(files[name]) - 3))  # the last bytes of a WebP may be padding
    assert not read_damaged({**files, name: files[name][:cut]})


def test_undamaged_files_are_read(files: dict[str, bytes]) -> None:
    assert read_damaged(files)
