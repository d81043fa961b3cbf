"""Whatever is in a user's pictures, tables and folders, reading them gives images or an InputError."""

import os
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from espalier.data.imageset import ImageSet
from espalier.data.own import SUFFIXES, from_csv, from_folder
from espalier.data.pictures import decode_picture
from espalier.errors import InputError

fuzz = settings(max_examples=60, deadline=None, derandomize=True)
shares = st.floats(0, 1, exclude_max=True)
"""Where in a file: as a share of its length, so that one example fits files of every size."""
flips = st.lists(st.tuples(shares, st.integers(0, 7)), min_size=1, max_size=5)

KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
MODES = {"PNG": "RGBA", "JPEG": "L", "GIF": "P", "BMP": "RGB", "WEBP": "RGBA", "TIFF": "RGB"}
SIZE = 5
TABLE = b"path,label\n" + b"".join(b"%d.png,%s\n" % (i, b"cat" if i % 2 else b"dog") for i in range(8))


@pytest.fixture(autouse=True)
def pillow_only_warns() -> Iterator[None]:
    """As it does for a user: here a warning, an error elsewhere in these tests, would end the reading too early."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def valid(kind: str) -> bytes:
    pixels = np.random.RandomState(0).randint(0, 256, (7, 9, 3)).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).convert(MODES[kind]).save(file, kind)
    return file.getvalue()


def flipped(content: bytes, places: list[tuple[float, int]]) -> bytes:
    damaged = bytearray(content)
    for share, bit in places:
        damaged[int(share * len(damaged))] ^= 1 << bit
    return bytes(damaged)


# One picture


def check_picture(content: bytes) -> bool:
    """Whether it was read."""
    try:
        found = decode_picture(content, SIZE, "the-name.png")
    except InputError as error:
        message = str(error)
    else:
        assert found.shape == (SIZE, SIZE, 3)
        assert found.dtype == np.uint8
        return True
    assert message.startswith("the picture the-name.png ")
    assert message.endswith(".")
    assert "\n" not in message
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_the_undamaged_picture_is_read(kind: str) -> None:
    assert check_picture(valid(kind))


@fuzz
@given(st.binary(max_size=300))
def test_random_bytes_are_no_picture(content: bytes) -> None:
    check_picture(content)


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(content=st.binary(max_size=200), keep=st.integers(2, 60))
def test_the_head_of_a_picture_and_random_bytes(kind: str, content: bytes, keep: int) -> None:
    check_picture(valid(kind)[:keep] + content)


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(share=shares)
def test_a_truncated_picture(kind: str, share: float) -> None:
    whole = valid(kind)
    check_picture(whole[: int(share * len(whole))])


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(places=flips)
def test_flipped_bits_in_a_picture(kind: str, places: list[tuple[float, int]]) -> None:
    check_picture(flipped(valid(kind), places))


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_a_picture_changed_in_turn(kind: str) -> None:
    whole = valid(kind)
    read = [check_picture(whole[:at] + b"\x20" + whole[at + 1 :]) for at in range(len(whole))]
    assert not all(read)


# A table


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    for i in range(8):
        (folder / f"{i}.png").write_bytes(valid("PNG"))
    (folder / "inner").mkdir()
    return folder


def read_table(folder: Path, content: bytes) -> ImageSet | str:
    table = folder / "table.csv"
    table.write_bytes(content)
    return outcome(from_csv, table)


def outcome(read: Callable[[Path, int], ImageSet], place: Path) -> ImageSet | str:
    """The images, or the sentence that says why there are none."""
    try:
        found = read(place, SIZE)
    except InputError as error:
        return str(error)
    assert found.images.shape == (len(found), SIZE, SIZE, 3)
    assert len(found.class_names) >= 2
    assert min(found.counts()) >= 2
    return found


def check_table(folder: Path, content: bytes) -> None:
    found = read_table(folder, content)
    if isinstance(found, str):
        assert found.endswith(".")
        assert str(folder) in found, "it names the table, or the picture beside it"
        assert "\n" not in found
        assert "\r" not in found
    else:
        assert all(name == name.strip() != "" for name in found.class_names)


def test_the_undamaged_table_is_read(pictures: Path) -> None:
    found = read_table(pictures, TABLE)
    assert isinstance(found, ImageSet)
    assert found.class_names == ("cat", "dog")
    assert found.counts() == [4, 4]


@fuzz
@given(text=st.text(max_size=200))
def test_random_text_is_no_table(pictures: Path, text: str) -> None:
    check_table(pictures, text.encode())


@fuzz
@given(content=st.binary(max_size=200))
def test_random_bytes_are_no_table(pictures: Path, content: bytes) -> None:
    check_table(pictures, content)


@fuzz
@given(text=st.text(max_size=100))
@example("\0,cat\n")
@example("x" * 5000 + ",cat\n")
@example(",cat\n")
@example("inner,cat\n")
@example("table.csv,cat\n")
@example("0.png,dog\ninner/../0.png,dog\n")
@example('"0.png\n",cat\n')
@example('"a\nb",cat,dog\n')
@example("0.png,dog," + "x" * 200_000)
def test_random_lines_in_a_table(pictures: Path, text: str) -> None:
    check_table(pictures, b"path,label\n" + text.encode())
    check_table(pictures, TABLE + text.encode())


@fuzz
@given(text=st.text(min_size=1, max_size=10))
@example(" ")
@example("dog ")
@example("\r\n")
def test_any_text_can_be_a_label(pictures: Path, text: str) -> None:
    field = '"' + text.replace('"', '""') + '"'
    table = TABLE.replace(b"cat", field.encode())
    check_table(pictures, table)
    found = read_table(pictures, table)
    readable = text.strip() and text.strip() != "dog"
    assert isinstance(found, ImageSet) == bool(readable)
    assert isinstance(found, str) or text.strip() in found.class_names


@fuzz
@given(places=flips)
def test_flipped_bits_in_a_table(pictures: Path, places: list[tuple[float, int]]) -> None:
    check_table(pictures, flipped(TABLE, places))


@fuzz
@given(edits=st.lists(st.tuples(shares, st.integers(0, 12), st.text(max_size=4)), min_size=1, max_size=3))
def test_cut_and_patched_tables(pictures: Path, edits: list[tuple[float, int, str]]) -> None:
    table = TABLE.decode()
    for share, cut, text in edits:
        at = int(share * len(table))
        table = table[:at] + text + table[at + cut :]
    check_table(pictures, table.encode())


# A folder

names = (st.text(min_size=1, max_size=40).map(lambda s: s.encode("utf-8", "replace")) | st.binary(min_size=1)).filter(
    lambda name: b"/" not in name and b"\0" not in name and name.strip(b".") != b"" and len(name) < 200
)


@fuzz
@given(
    classes=st.lists(names, min_size=2, max_size=3, unique=True),
    files=st.lists(names, min_size=3, max_size=4, unique=True),
    suffix=st.sampled_from([*SUFFIXES, ".PNG", ".txt", ""]),
)
@example([b"a", b"b"], [b"x y", b"-rf", b"3"], ".png")
@example([b"a", b"b"], [b"\xff", b"\xfe", b"3"], ".png")
@example([b"a", b"\xff"], [b"1", b"2", b"3"], ".png")
@example([b"a\nb", b" "], [b"1", b"\n", b"3"], ".png")
@example([b".a", b".b"], [b"1", b"2", b"3"], ".png")
@example([b"a.png", b"b.png"], [b"1", b"2", b"3"], ".png")
def test_odd_names_of_folders_and_files(classes: list[bytes], files: list[bytes], suffix: str) -> None:
    picture = valid("PNG")
    with TemporaryDirectory() as root:
        for name in classes:
            folder = os.path.join(os.fsencode(root), name)
            os.mkdir(folder)
            for file in files:
                Path(os.fsdecode(os.path.join(folder, file + suffix.encode()))).write_bytes(picture)
        found = outcome(from_folder, Path(root))
    shown = [name for name in classes if not name.startswith(b".")]
    if isinstance(found, str):
        assert root in found or "UTF-8" in found
    else:
        assert sorted(found.class_names) == sorted(name.decode() for name in shown)
        assert len(found) <= len(shown) * len(files)
    usual = suffix in SUFFIXES and len(shown) > 1 and not any(file.startswith(b".") for file in files)
    readable = all(name.decode("utf-8", "replace").encode() == name for name in shown)
    assert not (usual and readable) or isinstance(found, ImageSet)
    assert suffix not in (".txt", "") or any(Path(os.fsdecode(f)).suffix for f in files) or isinstance(found, str)


@fuzz
@given(name=names, content=st.binary(max_size=60))
def test_an_odd_name_beside_good_class_folders(name: bytes, content: bytes) -> None:
    """A file that is no picture is passed over, one that says it is a picture is refused."""
    picture = valid("PNG")
    with TemporaryDirectory() as root:
        for folder in ("cats", "dogs"):
            Path(root, folder).mkdir()
            for i in range(3):
                Path(root, folder, f"{i}.png").write_bytes(picture)
        path = Path(os.fsdecode(os.path.join(os.fsencode(root), name)))
        if path.exists():
            return
        path.write_bytes(content)
        assert isinstance(outcome(from_folder, Path(root)), ImageSet) == (path.suffix.lower() not in SUFFIXES)
        path.rename(Path(root, "stray.jpg"))
        assert "outside the class folders" in str(outcome(from_folder, Path(root)))
