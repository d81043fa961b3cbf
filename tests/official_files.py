"""Writes small files in the official formats, for tests. Every writer returns what a reader must find."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from espalier.data.imageset import Images, Labels
from espalier.data.official import DTD
from espalier.seeds import generator

Arrays = dict[str, tuple[Images, Labels]]


def make_arrays(counts: Mapping[str, int], shape: tuple[int, int, int], classes: int) -> Arrays:
    """Random images; the labels go round, so that every class is there from `classes` images on."""
    return {
        split: (
            generator(0, "official files", split).randint(0, 256, (count, *shape)).astype(np.uint8),
            np.arange(count, dtype=np.int64) % classes,
        )
        for split, count in counts.items()
    }


def idx_bytes(array: Images) -> bytes:
    """An idx file before compression: 3 axes are images, 1 is labels."""
    header = np.array([0x800 + array.ndim, *array.shape], dtype=">u4")
    return header.tobytes() + array.tobytes()


def write_mnist(folder: Path, train: int = 20, test: int = 10) -> Arrays:
    """Also Fashion-MNIST: its files have the same names and format."""
    arrays = make_arrays({"train": train, "test": test}, (28, 28, 1), 10)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, (images, labels) in zip(("train", "t10k"), arrays.values(), strict=True):
        images_file, labels_file = idx_bytes(images[..., 0]), idx_bytes(labels.astype(np.uint8))
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images_file, mtime=0))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels_file, mtime=0))
    return arrays


def tar_bytes(members: Mapping[str, bytes]) -> bytes:
    """A tar archive before compression."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(tar_bytes(members), compresslevel=1, mtime=0))


def cifar_records(images: Images, *labels: Labels) -> bytes:
    columns = [ids.astype(np.uint8)[:, None] for ids in labels]
    return np.hstack([*columns, images.transpose(0, 3, 1, 2).reshape(len(images), -1)]).tobytes()


def cifar10_members(arrays: Arrays) -> dict[str, bytes]:
    images, labels = arrays["train"]
    parts = np.array_split(np.arange(len(images)), 5)
    batches = {
        f"cifar-10-batches-bin/data_batch_{i}.bin": cifar_records(images[part], labels[part])
        for i, part in enumerate(parts, 1)
    }
    # The official archive does not hold its batches in order either.
    return {
        "cifar-10-batches-bin/readme.html": b"<html/>",
        **dict(reversed(batches.items())),
        "cifar-10-batches-bin/test_batch.bin": cifar_records(*arrays["test"]),
    }


def write_cifar10(folder: Path, train: int = 20, test: int = 10) -> Arrays:
    """At least 5 train images: one for each batch."""
    arrays = make_arrays({"train": train, "test": test}, (32, 32, 3), 10)
    write_tar(folder / "cifar-10-binary.tar.gz", cifar10_members(arrays))
    return arrays


def write_cifar100(folder: Path, train: int = 20, test: int = 10) -> Arrays:
    arrays = make_arrays({"train": train, "test": test}, (32, 32, 3), 100)
    members = {
        f"cifar-100-binary/{split}.bin": cifar_records(images, labels % 20, labels)
        for split, (images, labels) in arrays.items()
    }
    write_tar(folder / "cifar-100-binary.tar.gz", members)
    return arrays


def write_svhn(folder: Path, train: int = 20, test: int = 10, compress: bool = True) -> Arrays:
    arrays = make_arrays({"train": train, "test": test}, (32, 32, 3), 10)
    folder.mkdir(parents=True, exist_ok=True)
    for split, (images, labels) in arrays.items():
        y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        content = {"X": images.transpose(1, 2, 3, 0), "y": y}
        savemat(folder / f"{split}_32x32.mat", content, do_compression=compress)
    return arrays


def picture(width: int, height: int, seed: int, kind: str = "JPEG") -> bytes:
    pixels = generator(seed, "picture").randint(0, 256, (height, width, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def dtd_members(classes: Sequence[str] = DTD, per_split: int = 1) -> dict[str, bytes]:
    """Photographs of several sizes, upright and lying, of each class and split, and the three lists."""
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    members: dict[str, bytes] = {}
    for label, name in enumerate(classes):
        for i in range(3 * per_split):
            file = f"{name}/{name}_{i + 1:04}.jpg"
            lists[list(lists)[i % 3]].append(file)
            members[f"dtd/images/{file}"] = picture(40 + 7 * (i % 3), 50 - 5 * (i % 3), seed=label * 1000 + i)
    texts = {f"dtd/labels/{split}1.txt": "".join(f"{f}\n" for f in files) for split, files in lists.items()}
    return {"dtd/images/waffled/.directory": b"", **members, **{k: t.encode() for k, t in texts.items()}}


def write_dtd(folder: Path, classes: Sequence[str] = DTD, per_split: int = 1) -> dict[str, Labels]:
    """Returns the labels of each split only: the images are made smaller by the reader."""
    write_tar(folder / "dtd-r1.0.1.tar.gz", dtd_members(classes, per_split))
    labels = np.array([DTD.index(name) for name in classes for _ in range(per_split)])
    return dict.fromkeys(("train", "val", "test"), labels)
