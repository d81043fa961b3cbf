"""The readers of official files: what they return, and what they say about files that are not right."""

import gzip
import io
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espalier.data import cifar, dtd, idx, svhn
from espalier.data.official import CIFAR10, DIGITS, OFFICIAL
from espalier.errors import InputError, MissingDataError
from tests.official_files import (
    Arrays,
    cifar10_members,
    cifar_records,
    dtd_members,
    idx_bytes,
    make_arrays,
    picture,
    tar_bytes,
    write_cifar10,
    write_cifar100,
    write_dtd,
    write_mnist,
    write_svhn,
    write_tar,
)

Writer = Callable[[Path, int, int], Arrays]
WRITERS: dict[str, Writer] = {
    "mnist": write_mnist,
    "fashion-mnist": write_mnist,
    "svhn": write_svhn,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
}


def write_small(name: str, folder: Path) -> None:
    if name == "dtd":
        write_dtd(folder, ["banded"])
    else:
        WRITERS[name](folder, 20, 10)


@pytest.mark.parametrize("name", WRITERS)
def test_a_reader_returns_the_images_and_labels_of_the_files(name: str, tmp_path: Path) -> None:
    arrays = WRITERS[name](tmp_path, 120, 10)
    dataset = OFFICIAL[name].read(tmp_path)
    assert dataset.name == name
    assert list(dataset.splits) == ["train", "test"]
    assert dataset.class_names == OFFICIAL[name].class_names
    for split, (images, labels) in arrays.items():
        assert np.array_equal(dataset.splits[split].images, images)
        assert np.array_equal(dataset.splits[split].labels, labels)
        assert dataset.splits[split].labels.dtype == np.int64
        assert dataset.splits[split].images.flags.c_contiguous
        assert dataset.splits[split].images.flags.writeable
    assert not dataset.complete
    assert dataset.note.startswith(f"120 of {OFFICIAL[name].counts['train']:,} train images; 10 of ")


def test_as_many_images_as_the_official_count_are_complete(tmp_path: Path) -> None:
    write_mnist(tmp_path, 20, 10)
    dataset = idx.read(tmp_path, "mnist", DIGITS, {"train": 20, "test": 10})
    assert dataset.complete
    assert dataset.note == ""
    assert idx.read(tmp_path, "mnist", DIGITS, {"train": 20, "test": 11}).note == "10 of 11 test images"


def test_dtd_reads_the_first_official_splits(tmp_path: Path) -> None:
    labels = write_dtd(tmp_path, per_split=2)
    dataset = OFFICIAL["dtd"].read(tmp_path)
    assert list(dataset.splits) == ["train", "val", "test"]
    assert dataset.image_shape == (32, 32, 3)
    for split, expected in labels.items():
        assert np.array_equal(dataset.splits[split].labels, expected)
    assert dataset.note == "94 of 1,880 train images; 94 of 1,880 val images; 94 of 1,880 test images"


def test_dtd_image_and_label_belong_together(tmp_path: Path) -> None:
    members = dtd_members(["banded", "zigzagged"])
    content = picture(32, 32, seed=5, kind="PNG")  # no loss and no resizing: the pixels must come out unchanged
    members["dtd/images/zigzagged/zigzagged_0002.jpg"] = content
    write_tar(tmp_path / "dtd-r1.0.1.tar.gz", members)
    val = OFFICIAL["dtd"].read(tmp_path).splits["val"]
    assert val.labels.tolist() == [0, 46]
    assert np.array_equal(val.images[1], np.asarray(Image.open(io.BytesIO(content))))


@pytest.mark.parametrize("size", [(96, 32), (32, 96), (300, 100), (101, 303)])
def test_dtd_keeps_the_centre(size: tuple[int, int]) -> None:
    """Three bands along the long side: only the middle one may be seen, but for the blur at its edges."""
    bands = np.repeat(np.array([10, 120, 240], np.uint8), max(size) // 3)
    pixels = np.tile(bands, (min(size), 1)) if size[0] > size[1] else np.tile(bands[:, None], (1, min(size)))
    small = dtd.centre(Image.fromarray(pixels))
    assert small.shape == (32, 32, 3)
    assert np.abs(small[3:-3, 3:-3].astype(int) - 120).max() <= 2


def test_dtd_reads_grey_pictures_and_very_small_ones() -> None:
    grey = dtd.centre(Image.fromarray(np.full((5, 90), 77, np.uint8)))
    assert grey.shape == (32, 32, 3)
    assert (grey == 77).all()


def test_the_facts_agree_with_the_readers() -> None:
    assert list(OFFICIAL) == ["mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "dtd"]
    classes = {"mnist": 10, "fashion-mnist": 10, "svhn": 10, "cifar10": 10, "cifar100": 100, "dtd": 47}
    for name, official in OFFICIAL.items():
        assert official.name == name
        assert len(set(official.class_names)) == classes[name]
        for file in official.files:
            assert len(file.md5) == 32
            assert file.urls
            assert all(url.endswith(f"/{file.name}") and url.startswith("http") for url in file.urls)
    for name in ("cifar100", "dtd"):
        assert list(OFFICIAL[name].class_names) == sorted(OFFICIAL[name].class_names)
    assert OFFICIAL["cifar10"].files[0].name == cifar.LAYOUTS["cifar10"].archive
    assert OFFICIAL["cifar100"].files[0].name == cifar.LAYOUTS["cifar100"].archive
    assert [file.name for file in OFFICIAL["svhn"].files] == list(svhn.FILES.values())
    assert OFFICIAL["dtd"].files[0].name == dtd.ARCHIVE
    assert OFFICIAL["dtd"].counts == {"train": 1880, "val": 1880, "test": 1880}


@pytest.mark.parametrize("name", OFFICIAL)
def test_every_missing_file_is_named_with_the_cure(name: str, tmp_path: Path) -> None:
    for file in OFFICIAL[name].files:
        write_small(name, tmp_path)
        (tmp_path / file.name).unlink()
        with pytest.raises(MissingDataError, match=file.name) as caught:
            OFFICIAL[name].read(tmp_path)
        assert f"espalier data fetch {name}" in str(caught.value)


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_cut_off_file_is_named_with_the_cure(name: str, tmp_path: Path) -> None:
    for file in OFFICIAL[name].files:
        write_small(name, tmp_path)
        whole = (tmp_path / file.name).read_bytes()
        for content in (b"", whole[:10], whole[: len(whole) // 2], whole[:-12]):
            (tmp_path / file.name).write_bytes(content)
            with pytest.raises(InputError, match=file.name) as caught:
                OFFICIAL[name].read(tmp_path)
            assert f"delete it and run `espalier data fetch {name}` again" in str(caught.value)
            assert str(caught.value).count("\n") == 0


def test_a_folder_in_place_of_a_file_is_missing_data(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").mkdir()
    with pytest.raises(MissingDataError, match="train-images"):
        OFFICIAL["mnist"].read(tmp_path)


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (IMAGES, idx_bytes(np.zeros(20, np.uint8)), "ends inside its header|magic number is 0x801"),
        (IMAGES, idx_bytes(np.zeros((20, 27, 28), np.uint8)), r"shape \(27, 28\), not \(28, 28\)"),
        (IMAGES, idx_bytes(np.zeros((19, 28, 28), np.uint8)), "20 labels for 19 images"),
        (IMAGES, idx_bytes(np.zeros((0, 28, 28), np.uint8)), "claims 0 items"),
        (IMAGES, idx_bytes(np.zeros((20, 28, 28), np.uint8))[:-1], "ends before the 20 items"),
        (IMAGES, idx_bytes(np.zeros((20, 28, 28), np.uint8)) + b"x", "goes on after the 20 items"),
        (IMAGES, b"\0\0\x08", "ends inside its header"),
        (LABELS, idx_bytes(np.full(20, 10, np.uint8)), "label 10 is not one of 0 to 9"),
        (LABELS, idx_bytes(np.zeros((20, 28, 28), np.uint8)), "magic number is 0x803, not 0x801"),
    ],
)
def test_wrong_idx_files(file: str, content: bytes, said: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / file).write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=said) as caught:
        OFFICIAL["mnist"].read(tmp_path)
    assert "idx" in str(caught.value)
    assert "espalier data fetch mnist" in str(caught.value)


def test_an_idx_header_that_claims_billions_of_images_takes_no_memory(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / IMAGES).write_bytes(gzip.compress(struct.pack(">4I", 0x803, 2**32 - 1, 28, 28)))
    tracemalloc.start()
    with pytest.raises(InputError, match="claims 4,294,967,295 items"):
        OFFICIAL["mnist"].read(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_changed_byte_in_gzip_is_found_by_its_checksum(tmp_path: Path) -> None:
    arrays = make_arrays({"train": 20, "test": 10}, (32, 32, 3), 10)
    plain = tar_bytes(cifar10_members(arrays))
    packed = bytearray(gzip.compress(plain, compresslevel=0))
    packed[packed.index(arrays["test"][0][0].transpose(2, 0, 1).tobytes()[:50]) + 20] ^= 1
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(packed)
    with pytest.raises(InputError, match="CRC check failed"):
        OFFICIAL["cifar10"].read(tmp_path)


def test_the_pickle_version_of_cifar_is_never_opened(tmp_path: Path) -> None:
    for name, number in (("cifar10", "10"), ("cifar100", "100")):
        (tmp_path / f"cifar-{number}-python.tar.gz").write_bytes(b"whatever")
        with pytest.raises(MissingDataError, match="pickle version") as caught:
            OFFICIAL[name].read(tmp_path)
        assert f"put cifar-{number}-binary.tar.gz beside it" in str(caught.value)


@pytest.mark.parametrize(
    ("member", "content", "said"),
    [
        ("test_batch.bin", None, "test_batch.bin is missing"),
        ("data_batch_3.bin", None, "data_batch_3.bin is missing"),
        ("data_batch_3.bin", b"", "data_batch_3.bin has 0 bytes"),
        ("data_batch_3.bin", bytes(3074), "data_batch_3.bin has 3,074 bytes, not a multiple of 3,073"),
        ("data_batch_3.bin", bytes([10]) + bytes(3072), "data_batch_3.bin has the label 10"),
        ("data_batch_3.bin", bytes(10_001 * 3073), "data_batch_3.bin holds 30,733,073 bytes, over"),
    ],
)
def test_wrong_cifar_archives(member: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    members = cifar10_members(make_arrays({"train": 10, "test": 5}, (32, 32, 3), 10))
    del members[f"cifar-10-batches-bin/{member}"]
    if content is not None:
        members[f"cifar-10-batches-bin/{member}"] = content
    write_tar(tmp_path / "cifar-10-binary.tar.gz", members)
    with pytest.raises(InputError, match=said) as caught:
        OFFICIAL["cifar10"].read(tmp_path)
    assert "cifar-10-binary.tar.gz" in str(caught.value)


def test_cifar100_checks_the_fine_label_only(tmp_path: Path) -> None:
    images, labels = make_arrays({"train": 3}, (32, 32, 3), 100)["train"]
    fine, coarse = labels + 97, labels + 200
    content = cifar_records(images, coarse, fine)
    members = {"cifar-100-binary/train.bin": content, "cifar-100-binary/test.bin": content}
    write_tar(tmp_path / "cifar-100-binary.tar.gz", members)
    assert OFFICIAL["cifar100"].read(tmp_path).splits["test"].labels.tolist() == [97, 98, 99]
    members["cifar-100-binary/test.bin"] = cifar_records(images, coarse, fine + 1)
    write_tar(tmp_path / "cifar-100-binary.tar.gz", members)
    with pytest.raises(InputError, match=r"test\.bin has the label 100"):
        OFFICIAL["cifar100"].read(tmp_path)


def test_cifar_is_read_in_twice_its_size(tmp_path: Path) -> None:
    arrays = write_cifar10(tmp_path, 2000, 400)
    size = sum(images.nbytes for images, _ in arrays.values())
    del arrays
    tracemalloc.start()
    dataset = cifar.read(tmp_path, "cifar10", CIFAR10, {"train": 2000, "test": 400})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert dataset.complete
    assert peak < 2.2 * size


@pytest.mark.parametrize("unsafe", ["../evil.txt", "/etc/evil.txt", "dtd/../../evil.txt"])
@pytest.mark.parametrize("name", ["cifar10", "dtd"])
def test_archives_with_unsafe_names_are_refused(name: str, unsafe: str, tmp_path: Path) -> None:
    members = (
        dtd_members(["banded"])
        if name == "dtd"
        else cifar10_members(make_arrays({"train": 10, "test": 5}, (32, 32, 3), 10))
    )
    path = tmp_path / OFFICIAL[name].files[0].name
    write_tar(path, members | {unsafe: b"evil"})
    with pytest.raises(InputError, match="unsafe name") as caught:
        OFFICIAL[name].read(tmp_path)
    assert str(path) in str(caught.value)
    assert unsafe in str(caught.value)


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    members = dtd_members(["banded"])
    content = members.pop("dtd/images/banded/banded_0001.jpg")
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(content)
    link = tarfile.TarInfo("dtd/images/banded/banded_0001.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, str(secret)
    # The end of an archive is two empty blocks: put the link before it.
    plain = link.tobuf() + tar_bytes(members)
    (tmp_path / "dtd-r1.0.1.tar.gz").write_bytes(gzip.compress(plain))
    with pytest.raises(InputError, match=r"banded_0001\.jpg is missing"):
        OFFICIAL["dtd"].read(tmp_path)


@pytest.mark.parametrize(
    ("member", "content", "said"),
    [
        ("images/banded/banded_0001.jpg", b"", "banded_0001.jpg is empty"),
        ("images/banded/banded_0001.jpg", None, "banded_0001.jpg is missing"),
        ("images/banded/banded_0001.jpg", b"<html>no</html>", "banded_0001.jpg: cannot identify"),
        ("images/banded/banded_0001.jpg", picture(60, 60, 1)[:1500], "banded_0001.jpg: .*truncated"),
        ("labels/val1.txt", None, "val1.txt is missing"),
        ("labels/val1.txt", b"\n", "val1.txt lists no images"),
        ("labels/val1.txt", b"\xff\xfe", "val1.txt: .*decode"),
        ("labels/val1.txt", b"furry/furry_0001.jpg\n", "val1.txt lists 'furry/furry_0001.jpg'"),
        ("labels/val1.txt", b"../../etc/passwd\n", "val1.txt lists '../../etc/passwd'"),
    ],
)
def test_wrong_dtd_archives(member: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    members = dtd_members(["banded"])
    del members[f"dtd/{member}"]
    if content is not None:
        members[f"dtd/{member}"] = content
    write_tar(tmp_path / "dtd-r1.0.1.tar.gz", members)
    with pytest.raises(InputError, match=said) as caught:
        OFFICIAL["dtd"].read(tmp_path)
    assert "dtd-r1.0.1.tar.gz is damaged" in str(caught.value)


def test_dtd_refuses_a_picture_with_absurdly_many_pixels(tmp_path: Path) -> None:
    bomb = bytearray(picture(16, 16, 0, "PNG"))
    bomb[16:24] = struct.pack(">2I", 60_000, 60_000)
    members = dtd_members(["banded"]) | {"dtd/images/banded/banded_0001.jpg": bytes(bomb)}
    write_tar(tmp_path / "dtd-r1.0.1.tar.gz", members)
    with pytest.raises(InputError, match=r"banded_0001\.jpg"):
        OFFICIAL["dtd"].read(tmp_path)
