"""Whatever is in the official files, a reader returns a dataset or an InputError."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.data.imageset import Dataset
from espalier.data.official import OFFICIAL
from espalier.errors import InputError
from tests.official_files import write_cifar10, write_cifar100, write_dtd, write_mnist, write_svhn

fuzz = settings(max_examples=60, deadline=None, derandomize=True)
shares = st.floats(0, 1, exclude_max=True)
"""Where in a file: as a share of its length, so that one example fits files of every size."""
flips = st.lists(st.tuples(shares, st.integers(0, 7)), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("official")
    write_mnist(root / "mnist", 4, 3)
    write_svhn(root / "svhn", 4, 3)
    write_svhn(root / "svhn-plain", 4, 3, compress=False)
    write_cifar10(root / "cifar10", 5, 2)
    write_cifar100(root / "cifar100", 3, 2)
    write_dtd(root / "dtd", ["banded", "woven"])
    # One of SVHN's two files without compression: there, damage reaches the headers unhindered.
    (root / "svhn-plain" / "train_32x32.mat").replace(root / "svhn" / "train_32x32.mat")
    return {name: root / name for name in ("mnist", "svhn", "cifar10", "cifar100", "dtd")}


def read_with(folder: Path, file: int, content: bytes) -> None:
    """Read the folder with the content of one file replaced; the file is put back."""
    official = OFFICIAL[folder.name]
    path = folder / official.files[file % len(official.files)].name
    whole = path.read_bytes()
    path.write_bytes(content)
    try:
        outcome: Dataset | str = official.read(folder)
    except InputError as error:
        outcome = str(error)
    finally:
        path.write_bytes(whole)
    if isinstance(outcome, str):
        assert str(path.parent) in outcome
        assert "\n" not in outcome
    else:
        assert all(len(split) for split in outcome.splits.values())


def content_of(folder: Path, file: int, inside: bool) -> bytes:
    """The bytes of a file, `inside` its gzip layer if it has one."""
    files = OFFICIAL[folder.name].files
    name = files[file % len(files)].name
    content = (folder / name).read_bytes()
    return gzip.decompress(content) if inside and name.endswith(".gz") else content


def packed(folder: Path, content: bytes, inside: bool) -> bytes:
    return gzip.compress(content, compresslevel=1) if inside and folder.name != "svhn" else content


names = pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10", "cifar100", "dtd"])


@names
@fuzz
@given(file=st.integers(0, 3), content=st.binary(max_size=2000), inside=st.booleans())
def test_random_bytes(folders: dict[str, Path], name: str, file: int, content: bytes, inside: bool) -> None:
    read_with(folders[name], file, packed(folders[name], content, inside))


@names
@fuzz
@given(file=st.integers(0, 3), share=shares, inside=st.booleans())
def test_cut_off(folders: dict[str, Path], name: str, file: int, share: float, inside: bool) -> None:
    content = content_of(folders[name], file, inside)
    read_with(folders[name], file, packed(folders[name], content[: int(share * len(content))], inside))


@names
@fuzz
@given(file=st.integers(0, 3), places=flips, inside=st.booleans(), early=st.booleans())
def test_flipped_bits(
    folders: dict[str, Path],
    name: str,
    file: int,
    places: list[tuple[float, int]],
    inside: bool,
    early: bool,
) -> None:
    """`early`: within the first 600 bytes, where the headers are."""
    content = bytearray(content_of(folders[name], file, inside))
    for share, bit in places:
        content[int(share * (min(len(content), 600) if early else len(content)))] ^= 1 << bit
    read_with(folders[name], file, packed(folders[name], bytes(content), inside))
