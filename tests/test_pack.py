"""Image-packs: what is written comes back bit by bit, and what is damaged is refused with a cure."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from espalier.data.imageset import Dataset, ImageSet
from espalier.data.pack import PackInfo, describe_pack, read_pack, verify_pack, write_pack
from espalier.errors import InputError

NAMES = ("cat", "dog", "fox")


def noise(count: int, height: int = 4, width: int = 4, channels: int = 3, classes: int = 3) -> ImageSet:
    random = np.random.RandomState(count)
    images = random.randint(0, 256, (count, height, width, channels)).astype(np.uint8)
    labels = np.arange(count) % classes
    return ImageSet(images, labels, NAMES if classes == 3 else tuple(map(str, range(classes))))


def same(a: Dataset, b: Dataset) -> bool:
    return (
        (a.name, a.class_names, a.complete, a.note) == (b.name, b.class_names, b.complete, b.note)
        and list(a.splits) == list(b.splits)
        and all(np.array_equal(s.images, b.splits[k].images) for k, s in a.splits.items())
        and all(np.array_equal(s.labels, b.splits[k].labels) for k, s in a.splits.items())
    )


@pytest.fixture(scope="module")
def whole_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "zoo"
    write_pack(Dataset("zoo", {"train": noise(40), "test": noise(6)}, complete=False, note="made up"), folder)
    return folder


@pytest.fixture
def pack(whole_pack: Path, tmp_path: Path) -> Path:
    """A pack to damage."""
    return Path(shutil.copytree(whole_pack, tmp_path / "zoo"))


def edit(folder: Path, change: Callable[[Any], object]) -> None:
    table = json.loads((folder / "pack.json").read_bytes())
    change(table)
    (folder / "pack.json").write_text(json.dumps(table))


@pytest.mark.parametrize("channels", [1, 3])
def test_more_than_a_sheet_comes_back_bit_by_bit(tmp_path: Path, channels: int) -> None:
    counts = {"train": 1100, "val": 1, "test": 33}
    dataset = Dataset("zoo", {split: noise(count, 3, 5, channels) for split, count in counts.items()})
    write_pack(dataset, tmp_path / "zoo")
    assert same(read_pack(tmp_path / "zoo"), dataset)
    table = json.loads((tmp_path / "zoo" / "pack.json").read_bytes())
    assert [s["count"] for s in table["splits"]["train"]["sheets"]] == [1024, 76]
    verify_pack(tmp_path / "zoo")


def test_every_grey_value_survives(tmp_path: Path) -> None:
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8, 1)
    write_pack(Dataset("ramp", {"train": ImageSet(images, np.zeros(4, np.int64), ("a",))}), tmp_path / "ramp")
    assert np.array_equal(read_pack(tmp_path / "ramp").splits["train"].images, images)


def test_a_sheet_is_laid_out_as_the_format_says(pack: Path) -> None:
    images = read_pack(pack).splits["train"].images
    sheet = np.asarray(Image.open(pack / "train-000.webp"))
    assert sheet.shape == (2 * 4, 32 * 4, 3)
    assert np.array_equal(sheet[4:8, 7 * 4 : 8 * 4], images[32 + 7])
    assert not sheet[4:8, 8 * 4 :].any()


def test_wide_images_get_fewer_columns(tmp_path: Path) -> None:
    dataset = Dataset("wide", {"train": noise(40, 2, 600)})
    write_pack(dataset, tmp_path / "wide")
    assert json.loads((tmp_path / "wide" / "pack.json").read_bytes())["columns"] == 16383 // 600
    assert same(read_pack(tmp_path / "wide"), dataset)


def test_256_classes_fit_and_257_do_not(tmp_path: Path) -> None:
    dataset = Dataset("many", {"train": noise(256, classes=256)})
    write_pack(dataset, tmp_path / "many")
    assert same(read_pack(tmp_path / "many"), dataset)
    with pytest.raises(InputError, match="257 classes"):
        write_pack(Dataset("many", {"train": noise(257, classes=257)}), tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_describe_opens_no_file_but_wants_them_there(pack: Path) -> None:
    for file in pack.iterdir():
        if file.name != "pack.json":
            file.write_bytes(b"")
    info = PackInfo("zoo", (4, 4, 3), NAMES, {"train": 40, "test": 6}, complete=False, note="made up")
    assert describe_pack(pack) == info
    (pack / "train-000.webp").unlink()
    with pytest.raises(InputError, match=r"lacks the file .*train-000.webp"):
        describe_pack(pack)


def test_unknown_keys_are_passed_over_and_optional_ones_have_defaults(pack: Path) -> None:
    edit(pack, lambda t: (t.update(coarse_names=["x"]), t.pop("note"), t.pop("complete")))
    assert (describe_pack(pack).note, describe_pack(pack).complete) == ("", True)
    assert len(read_pack(pack).splits["train"]) == 40


def test_progress_counts_images(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    dataset = Dataset("zoo", {"train": noise(1030, 1, 1), "test": noise(4, 1, 1)})
    write_pack(dataset, tmp_path / "zoo", lambda done, total: calls.append((done, total)))
    assert calls == [(1024, 1034), (1030, 1034), (1034, 1034)]
    read_pack(tmp_path / "zoo", lambda done, total: calls.append((done, total)))
    assert calls[3:] == calls[:3]
    verify_pack(tmp_path / "zoo", lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls[6:]] == [1024, 1030, 1034, 2058, 2064, 2068]
    assert {total for _, total in calls[6:]} == {2068}


# Bad packs


def set_to(value: object, *keys: str | int) -> Callable[[Any], None]:
    def change(table: Any) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return change


SHEET = ("splits", "train", "sheets", 0)

BAD_JSON: dict[str, tuple[Callable[[Any], object], str]] = {
    "format": (set_to("tar", "format"), "not describe an image-pack"),
    "newer": (set_to(2, "version"), "made by a newer Espalier .* upgrade"),
    "older": (set_to(0, "version"), "version 0"),
    "version text": (set_to("1", "version"), "'version'"),
    "version true": (set_to(True, "version"), "'version'"),
    "no name": (lambda t: t.pop("name"), "'name'"),
    "half a letter": (set_to("\ud800", "name"), "'name'"),
    "image": (set_to([4, 4], "image"), "'image'"),
    "four channels": (set_to([4, 4, 4], "image"), "'image'"),
    "no pixels": (set_to([0, 4, 3], "image"), "'image'"),
    "float size": (set_to([4.0, 4, 3], "image"), "'image'"),
    "columns": (set_to(0, "columns"), "'columns'"),
    "no classes": (set_to([], "class_names"), "'class_names'"),
    "a class twice": (set_to(["a", "a"], "class_names"), "'class_names'"),
    "class not text": (set_to(["a", []], "class_names"), "'class_names'"),
    "too many classes": (set_to([str(i) for i in range(257)], "class_names"), "'class_names'"),
    "fewer classes": (set_to(["a", "b"], "class_names"), "hold 2, but the pack has 2 classes"),
    "no splits": (set_to({}, "splits"), "'splits'"),
    "splits list": (set_to([], "splits"), "'splits'"),
    "split name": (set_to({}, "splits", "../x"), "'splits'"),
    "split null": (set_to(None, "splits", "train"), "'splits'"),
    "empty split": (set_to({"count": 0, "labels": "a.npy", "sheets": []}, "splits", "train"), "'count'"),
    "sheets null": (set_to(None, "splits", "train", "sheets"), "'sheets'"),
    "sheet text": (set_to("train-000.webp", *SHEET), "'sheets'"),
    "count": (set_to(41, "splits", "train", "count"), "counts 41 .* but 40"),
    "negative": (set_to(-40, *SHEET, "count"), "'count'"),
    "same file twice": (set_to("train-000.webp", "splits", "test", "sheets", 0, "file"), "names each once"),
    "complete": (set_to("yes", "complete"), "'complete'"),
    "note": (set_to(3, "note"), "'note'"),
    "up": (set_to("../zoo/train-000.webp", *SHEET, "file"), "'file' .* plain name"),
    "dots": (set_to("..", *SHEET, "file"), "plain name"),
    "absolute": (set_to("/etc/passwd", "splits", "train", "labels"), "'labels' .* plain name"),
    "backslash": (set_to("a\\b", *SHEET, "file"), "plain name"),
    "long name": (set_to("a" * 300, *SHEET, "file"), "plain name"),
    "missing sheet": (set_to("train-001.webp", *SHEET, "file"), "lacks the file .*train-001.webp"),
    "missing labels": (set_to("train.npy", "splits", "train", "labels"), r"lacks the file .*train\.npy"),
    "height": (set_to([5, 4, 3], "image"), "train-000.webp is 128 x 8 RGB, but .* 128 x 10"),
    "width of columns": (set_to(16, "columns"), "is 128 x 8 RGB, but .* 64 x 12"),
    "grey": (set_to([4, 4, 1], "image"), "has colours"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_a_wrong_pack_json_is_refused(pack: Path, case: str) -> None:
    change, message = BAD_JSON[case]
    edit(pack, change)
    with pytest.raises(InputError, match=message) as caught:
        read_pack(pack)
    assert str(pack) in str(caught.value)
    assert ";" in str(caught.value)


def test_huge_claims_get_no_memory(pack: Path) -> None:
    edit(pack, set_to([2**40, 2**40, 3], "image"))
    with pytest.raises(InputError, match="is 128 x 8 RGB"):
        read_pack(pack)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe\xfa", b'{"a":' * 100_000, b"1" * 5000])
def test_pack_json_that_is_no_object_is_refused(pack: Path, content: bytes) -> None:
    (pack / "pack.json").write_bytes(content)
    with pytest.raises(InputError, match=r"pack\.json"):
        describe_pack(pack)


def test_a_folder_that_is_no_pack_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"pack\.json cannot be read .*name the folder"):
            read_pack(folder)


def webp(size: tuple[int, int] = (128, 8), mode: str = "RGB", frames: int = 1) -> Callable[[bytes], bytes]:
    def make(_: bytes) -> bytes:
        file = BytesIO()
        pictures = [Image.new(mode, size, (i * 9, 0, 0, 100)[: len(mode)]) for i in range(frames)]
        pictures[0].save(file, "WEBP", lossless=True, save_all=frames > 1, append_images=pictures[1:])
        return file.getvalue()

    return make


def bomb(_: bytes) -> bytes:
    """A WebP header that promises 16,383 x 16,383 pixels."""
    body = b"\x2f" + struct.pack("<I", 16382 | 16382 << 14) + bytes(32)
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


BAD_SHEETS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda b: b"",
    "truncated": lambda b: b[: len(b) // 2],
    "header only": lambda b: b[:25],
    "text": lambda b: b"no image at all" * 10,
    "size": webp((128, 12)),
    "alpha": webp(mode="RGBA"),
    "animated": webp(frames=3),
    "bomb": bomb,
}


@pytest.mark.parametrize("case", BAD_SHEETS)
def test_a_bad_sheet_is_refused(pack: Path, case: str) -> None:
    sheet = pack / "test-000.webp"
    sheet.write_bytes(BAD_SHEETS[case](sheet.read_bytes()))
    with pytest.raises(InputError, match=r"the sheet .*test-000\.webp .*; fetch or write the pack again"):
        read_pack(pack)


def npy(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npy_header(count: int) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (count,)})
    return file.getvalue()


def npz(array: Any) -> bytes:
    file = BytesIO()
    np.savez(file, array)
    return file.getvalue()


BAD_LABELS = {
    "empty": b"",
    "truncated": npy(np.zeros(6, np.uint8))[:-1],
    "header only": npy(np.zeros(6, np.uint8))[:20],
    "pickled": npy(np.array([{}] * 6, dtype=object)),
    "too few": npy(np.zeros(5, np.uint8)),
    "too many": npy(np.zeros(7, np.uint8)),
    "int64": npy(np.zeros(6, np.int64)),
    "a column": npy(np.zeros((6, 1), np.uint8)),
    "npz": npz(np.zeros(6, np.uint8)),
    "label 3 of 3 classes": npy(np.full(6, 3, np.uint8)),
    "huge": npy_header(10**15),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_refused(pack: Path, case: str) -> None:
    (pack / "test.labels.npy").write_bytes(BAD_LABELS[case])
    with pytest.raises(InputError, match=r"the labels .*test\.labels\.npy .*; fetch or write the pack again"):
        read_pack(pack)


def test_a_folder_in_place_of_a_sheet_is_refused(pack: Path) -> None:
    (pack / "test-000.webp").unlink()
    (pack / "test-000.webp").mkdir()
    with pytest.raises(InputError, match=r"lacks the file .*test-000\.webp"):
        read_pack(pack)


@pytest.mark.parametrize("name", ["train-000.webp", "test.labels.npy"])
def test_verify_finds_what_reading_cannot(pack: Path, name: str) -> None:
    if name.endswith(".npy"):
        np.save(pack / name, np.array([2, 1, 0, 2, 1, 0], np.uint8))
    else:
        Image.new("RGB", (128, 8)).save(pack / name, "WEBP", lossless=True)
    read_pack(pack)
    with pytest.raises(InputError, match=f"checksum of .*{name}"):
        verify_pack(pack)


def test_verify_needs_checksums_and_files(pack: Path) -> None:
    edit(pack, lambda t: t["splits"]["test"].pop("labels_sha256"))
    read_pack(pack)
    with pytest.raises(InputError, match=r"no checksum for .*test\.labels\.npy"):
        verify_pack(pack)
    (pack / "test.labels.npy").unlink()
    with pytest.raises(InputError, match=r"lacks the file .*test\.labels\.npy"):
        verify_pack(pack)


def test_verify_also_reads(pack: Path) -> None:
    sheet = pack / "test-000.webp"
    sheet.write_bytes(b"not a WebP")
    right = hashlib.sha256(b"not a WebP").hexdigest()
    edit(pack, set_to(right, "splits", "test", "sheets", 0, "sha256"))
    with pytest.raises(InputError, match="not a WebP image"):
        verify_pack(pack)


# What cannot be written


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    with pytest.raises(InputError, match="exists already; remove it or choose another name"):
        write_pack(Dataset("zoo", {"train": noise(3)}), tmp_path / "zoo")
    assert list((tmp_path / "zoo").iterdir()) == []


def test_what_does_not_fit_into_a_pack_is_refused(tmp_path: Path) -> None:
    for dataset, message in [
        (Dataset("zoo", {"train": noise(3), "test": noise(0)}), "test split of dataset 'zoo' is empty"),
        (Dataset("zoo", {"../train": noise(3)}), "cannot name a split"),
        (Dataset("zoo", {"train": noise(1, 1, 16384)}), "16384 x 1 pixels do not fit"),
        (Dataset("zoo", {"train": noise(1, 0, 4)}), "4 x 0 pixels do not fit"),
        (Dataset("zoo", {"train": noise(3)}, note="\udcff"), "not valid text"),
    ]:
        with pytest.raises(InputError, match=message):
            write_pack(dataset, tmp_path / "zoo")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/zoo cannot be written \(.+\); choose"):
        write_pack(Dataset("zoo", {"train": noise(3)}), tmp_path / "file" / "zoo")


def test_an_error_half_way_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(Dataset("zoo", {"train": noise(3000, 1, 1)}), tmp_path / "zoo", stop)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_pack(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
import numpy as np
from espalier.data.imageset import Dataset, ImageSet
from espalier.data.pack import write_pack
images = ImageSet(np.zeros((2000, 1, 1, 3), np.uint8), np.zeros(2000, np.int64), ("a",))
write_pack(Dataset("zoo", {"train": images}), Path(sys.argv[1]), lambda done, total: os._exit(9))
"""
    root = Path(__file__).parents[1]
    code = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "zoo")], env={**os.environ, "PYTHONPATH": str(root)}, check=False
    ).returncode
    assert code == 9
    assert not (tmp_path / "zoo").exists()
    write_pack(Dataset("zoo", {"train": noise(3)}), tmp_path / "zoo")
    assert len(read_pack(tmp_path / "zoo").splits["train"]) == 3
