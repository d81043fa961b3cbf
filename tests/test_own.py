"""A user's own images: pictures of all kinds, class folders, CSV tables, and the split into train and test."""

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from espalier.data.own import TOLD, from_csv, from_folder
from espalier.data.pictures import decode_picture, load_picture
from espalier.errors import InputError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def load(data: bytes, size: int = 4) -> Any:
    return decode_picture(data, size, "x.png")


# One picture


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "GIF", "WEBP", "JPEG"])
def test_a_picture_of_any_kind_is_read(kind: str) -> None:
    found = load(encoded(Image.new("RGB", (9, 7), (200, 40, 10)), kind))
    assert found.shape == (4, 4, 3)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - (200, 40, 10)).max() <= 4


def test_pixels_of_the_right_size_are_not_touched() -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (8, 8, 3)).astype(np.uint8)
    assert np.array_equal(load(encoded(Image.fromarray(pixels)), 8), pixels)
    wide = np.concatenate([np.zeros((8, 3, 3), np.uint8), pixels, np.zeros((8, 4, 3), np.uint8)], axis=1)
    assert np.array_equal(load(encoded(Image.fromarray(wide)), 8), pixels)
    tall = np.concatenate([np.zeros((2, 8, 3), np.uint8), pixels, np.zeros((2, 8, 3), np.uint8)])
    assert np.array_equal(load(encoded(Image.fromarray(tall)), 8), pixels)


def test_the_short_side_is_scaled() -> None:
    stripes = Image.new("RGB", (300, 100), RED)
    stripes.paste(BLUE, (100, 0, 200, 100))
    assert load(encoded(stripes), 20)[:, 5:15].tolist() == [[list(BLUE)] * 10] * 20


def test_an_extremely_long_picture_is_read() -> None:
    assert load(encoded(Image.new("RGB", (30_000, 1), GREEN)), 32).tolist() == [[[0, 255, 0]] * 32] * 32


def test_a_photograph_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the first row is the right-hand side
    image = Image.new("RGB", (8, 8), RED)
    image.paste(BLUE, (0, 0, 8, 4))
    found = load(encoded(image, "PNG", exif=exif), 8)
    assert found[:, 7].tolist() == [list(BLUE)] * 8
    assert found[:, 0].tolist() == [list(RED)] * 8


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (Image.new("L", (5, 5), 77), (77, 77, 77)),
        (Image.new("1", (5, 5), 1), (255, 255, 255)),
        (Image.new("RGB", (5, 5), (9, 8, 7)).quantize(2), (9, 8, 7)),
        (Image.new("RGBA", (5, 5), (1, 2, 3, 0)), (255, 255, 255)),
        (Image.new("RGBA", (5, 5), (0, 0, 0, 51)), (204, 204, 204)),
        (Image.new("LA", (5, 5), (0, 51)), (204, 204, 204)),
    ],
    ids=["grey", "one bit", "palette", "clear", "half clear", "grey half clear"],
)
def test_other_modes_become_rgb(image: Image.Image, colour: tuple[int, int, int]) -> None:
    assert load(encoded(image), 2).tolist() == [[list(colour)] * 2] * 2


def test_a_palette_with_transparency_is_laid_over_white() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([9, 9, 9, 200, 100, 0])
    image.paste(1, (0, 0, 4, 2))
    found = load(encoded(image, transparency=bytes([0, 255])))
    assert found[3].tolist() == [[255, 255, 255]] * 4
    assert found[0].tolist() == [[200, 100, 0]] * 4


def test_ycbcr_is_read_and_a_camera_preview_is_passed_over() -> None:
    ycbcr = Image.new("RGB", (4, 4), RED).convert("YCbCr")
    assert load(encoded(ycbcr, "TIFF"))[0, 0, 0] > 250
    photo, preview = Image.new("RGB", (16, 16), RED), Image.new("RGB", (8, 8), BLUE)
    assert load(encoded(photo, "MPO", save_all=True, append_images=[preview]))[0, 0, 0] > 250


def frames(kind: str) -> bytes:
    pictures = [Image.new("RGB", (4, 4), colour) for colour in (RED, GREEN, BLUE)]
    return encoded(pictures[0], kind, save_all=True, append_images=pictures[1:])


def png_bomb(side: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


GOOD = encoded(Image.fromarray(np.random.RandomState(0).randint(0, 256, (40, 40, 3)).astype(np.uint8)))

BAD_PICTURES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is an empty file; replace or remove it"),
    "text": (b"hello" * 20, "is damaged, or not an image"),
    "truncated": (GOOD[: len(GOOD) // 2], "is damaged"),
    "header": (GOOD[:30], "is damaged"),
    "16 bits": (encoded(Image.new("I;16", (4, 4), 300)), "more than 8 bits per channel; save it with 8 bits"),
    "32 bits": (encoded(Image.new("I", (4, 4), 300), "TIFF"), "more than 8 bits"),
    "float": (encoded(Image.new("F", (4, 4), 0.5), "TIFF"), "more than 8 bits"),
    "CMYK": (encoded(Image.new("CMYK", (4, 4)), "JPEG"), "CMYK colours; save it as RGB"),
    "LAB": (encoded(Image.new("LAB", (4, 4)), "TIFF"), "LAB colours; save it as RGB"),
    "GIF": (frames("GIF"), "several frames or pages"),
    "APNG": (frames("PNG"), "several frames or pages"),
    "WEBP": (frames("WEBP"), "several frames or pages"),
    "TIFF": (frames("TIFF"), "several frames or pages"),
    "bomb": (png_bomb(60_000), "more pixels than are safe to decode; make it smaller"),
    "large": (png_bomb(11_000), "more pixels than are safe to decode; make it smaller"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n", "is damaged, or not"),
}


@pytest.mark.parametrize("case", BAD_PICTURES)
def test_a_picture_that_cannot_be_used_is_named(tmp_path: Path, case: str) -> None:
    data, message = BAD_PICTURES[case]
    path = tmp_path / "odd.png"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"^the picture .*odd\.png .*{message}.*\.$"):
        load_picture(path, 4)


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.png cannot be opened \(No such file"):
        load_picture(tmp_path / "none.png", 4)


# Class folders


def put(path: Path, colour: tuple[int, int, int] = RED) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(Image.new("RGB", (6, 6), colour)))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "zoo"
    for number in range(3):
        put(folder / "dogs" / f"{number}.png", (number, 0, 0))
        put(folder / "cats" / f"{number}.PNG", (0, number, 0))
    return folder


def test_class_folders_are_read_in_order(zoo: Path) -> None:
    calls: list[tuple[int, int]] = []
    images = from_folder(zoo, 5, lambda done, total: calls.append((done, total)))
    assert images.class_names == ("cats", "dogs")
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.images.shape == (6, 5, 5, 3)
    assert images.images[:, 0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert calls == [(done, 6) for done in range(1, 7)]


def test_hidden_and_other_files_are_passed_over(zoo: Path) -> None:
    (zoo / "README.txt").touch()
    (zoo / ".hidden").mkdir()
    (zoo / "cats" / ".3.png").touch()
    (zoo / "cats" / "notes.txt").touch()
    (zoo / "cats" / ".checkpoints").mkdir()
    assert from_folder(zoo).counts() == [3, 3]


def nest(zoo: Path) -> None:
    put(zoo / "cats" / "kittens" / "1.png")


def flatten(zoo: Path) -> None:
    shutil.rmtree(zoo)
    put(zoo / "1.png")


def empty(zoo: Path) -> None:
    shutil.rmtree(zoo)
    zoo.mkdir()


def keep_one_picture(zoo: Path) -> None:
    (zoo / "dogs" / "0.png").unlink()
    (zoo / "dogs" / "1.png").unlink()


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nested": (nest, r"zoo/cats holds another folder, 'kittens'; move its pictures up"),
    "flat": (flatten, r"zoo/1\.png lies outside the class folders; put every class in a folder of its own"),
    "stray": (lambda zoo: put(zoo / "1.png"), r"zoo/1\.png lies outside the class folders"),
    "empty": (empty, "holds no class folders; put every class in a folder of its own, such as cats/1.jpg"),
    "missing": (shutil.rmtree, r"zoo cannot be read \(No such file"),
    "no picture": (lambda zoo: (zoo / "eels").mkdir(), r"zoo/eels holds no pictures; add some \(\.jpg, "),
    "one class": (lambda zoo: shutil.rmtree(zoo / "cats"), "only the class 'dogs'"),
    "one picture": (keep_one_picture, "class 'dogs' .* needs at least 3 pictures .* has 1"),
    "bad picture": (lambda zoo: (zoo / "dogs" / "1.png").write_bytes(b"x"), r"zoo/dogs/1\.png is damaged"),
    "empty picture": (lambda zoo: (zoo / "dogs" / "9.jpg").touch(), r"zoo/dogs/9\.jpg is an empty file"),
    "dead link": (lambda zoo: (zoo / "dogs" / "9.jpg").symlink_to("gone"), r"dogs/9\.jpg cannot be opened"),
    "unread": (lambda zoo: (zoo / "dogs" / "9.heic").touch(), r"dogs/9\.heic is in a format that is not read"),
    "name": (lambda zoo: (zoo / os.fsdecode(b"\xff")).mkdir(), "not UTF-8 text; rename it"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_folder_that_cannot_be_used_is_explained(zoo: Path, case: str) -> None:
    change, message = BAD_FOLDERS[case]
    change(zoo)
    with pytest.raises(InputError, match=message):
        from_folder(zoo)


def test_a_file_in_place_of_the_folder_is_explained(zoo: Path) -> None:
    with pytest.raises(InputError, match=r"0\.png cannot be read \(Not a directory\)"):
        from_folder(zoo / "dogs" / "0.png")


@pytest.mark.parametrize("size", [0, -1, 1025])
def test_an_impossible_size_is_refused(zoo: Path, size: int) -> None:
    with pytest.raises(InputError, match=f"size of {size} .* between 1 and 1024"):
        from_folder(zoo, size)


# CSV tables


ROWS = [row for i in range(3) for row in (f"dogs/{i}.png,dog", f"cats/{i}.PNG,cat")]


def write_table(zoo: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path = zoo / "table.csv"
    path.write_text("\n".join(lines), encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_is_read_in_its_order(zoo: Path, encoding: str) -> None:
    images = from_csv(write_table(zoo, "path,label", *ROWS, encoding=encoding), 4)
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [1, 0] * 3
    assert images.images[:, 0, 0].tolist() == [[0, 0, 0]] * 2 + [[1, 0, 0], [0, 1, 0]] + [[2, 0, 0], [0, 2, 0]]


def test_absolute_paths_blank_lines_and_quotes_are_fine(zoo: Path) -> None:
    put(zoo / "a, b.png")
    put(zoo / "dogs" / "9.png")
    rows = [f"{zoo / 'dogs' / '9.png'},dog", "", '"a, b.png"," cat "', ""]
    assert from_csv(write_table(zoo, "path,label", *ROWS, *rows)).counts() == [4, 4]


BAD_TABLES: dict[str, tuple[list[str], str]] = {
    "empty": ([], "table.csv is empty; it needs the header 'path,label'"),
    "no rows": (["path,label"], "names no pictures"),
    "header": (["file;class", *ROWS], "must begin with the line 'path,label', not 'file;class'"),
    "no header": (ROWS, "must begin with the line 'path,label'"),
    "three fields": (["path,label", "dogs/0.png,dog,3"], "line 2 of .* must be a path and a label"),
    "one field": (["path,label", *ROWS, "dogs/2.png"], "line 8 of .* must be a path and a label"),
    "empty label": (["path,label", "dogs/0.png, "], "line 2 of .* must be a path and a label"),
    "empty path": (["path,label", ",dog"], "line 2 of .* must be a path and a label"),
    "missing": (["path,label", *ROWS, "", "dogs/9.png,dog"], r"line 9 of .* names 'dogs/9\.png', which is not a file"),
    "a folder": (["path,label", "dogs,dog"], "line 2 of .* names 'dogs', which is not a file"),
    "long": (["path,label", "d" * 5000 + ",dog"], "line 2 of .* is not a file"),
    "same label": (["path,label", *ROWS, "dogs/0.png,dog"], r"names 'dogs/0\.png' on lines 2 and 8; keep one"),
    "other label": (["path,label", *ROWS, "dogs/../dogs/0.png,cat"], "on lines 2 and 8; keep one"),
    "one class": (["path,label", ROWS[0], ROWS[2]], "only the class 'dog'"),
    "one picture": (["path,label", *ROWS[:3]], "class 'cat' of .* needs at least 3 pictures .* has 1"),
    "open quote": (["path,label", '"dogs/0.png,dog'], "not well-formed CSV"),
    "long field": (["path,label", "dogs/0.png," + "d" * 200_000], "not well-formed CSV"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_cannot_be_used_is_explained(zoo: Path, case: str) -> None:
    lines, message = BAD_TABLES[case]
    with pytest.raises(InputError, match=message) as caught:
        from_csv(write_table(zoo, *lines))
    assert "table.csv" in str(caught.value)


def test_a_table_in_another_encoding_is_explained(zoo: Path) -> None:
    with pytest.raises(InputError, match=r"table\.csv is not UTF-8 text"):
        from_csv(write_table(zoo, "path,label", "dogs/0.png,Käfer", encoding="latin-1"))


def test_a_missing_table_is_named(zoo: Path) -> None:
    for path in (zoo / "none.csv", zoo):
        with pytest.raises(InputError, match=r"the table .* cannot be read \("):
            from_csv(path)


def test_a_bad_picture_in_a_table_is_named(zoo: Path) -> None:
    (zoo / "dogs" / "1.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"dogs/1\.png is damaged"):
        from_csv(write_table(zoo, "path,label", *ROWS))


def test_all_bad_pictures_are_told_at_once(zoo: Path) -> None:
    (zoo / "dogs" / "1.png").write_bytes(b"no picture")
    (zoo / "cats" / "2.png").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        from_folder(zoo)
    first, empty, damaged = str(caught.value).splitlines()
    assert first == f"2 pictures of {zoo} cannot be used:"
    assert "cats/2.png is an empty file" in empty
    assert "dogs/1.png is damaged" in damaged


def test_of_very_many_bad_pictures_the_number_is_told(zoo: Path) -> None:
    for number in range(TOLD + 5):
        (zoo / "cats" / f"bad{number:02}.png").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        from_folder(zoo)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + TOLD + 1
    assert "bad19.png" in lines[TOLD]
    assert lines[-1].strip() == "and 5 more."


def test_sixteen_bit_colour_is_refused(tmp_path: Path) -> None:
    """Pillow opens it as 8-bit RGB, so the file is written by hand."""
    rows = b"".join(b"\0" + bytes(range(24)) for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    path = tmp_path / "deep.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    with pytest.raises(InputError, match=r"deep.png has more than 8 bits per channel"):
        load_picture(path, 4)
