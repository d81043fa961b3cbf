"""SVHN's MATLAB files: what the reader returns, and what it says about files that are not right."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from espalier.data import svhn
from espalier.data.mat import read_mat
from espalier.data.official import DIGITS, OFFICIAL
from espalier.errors import InputError
from tests.official_files import write_svhn

X = np.zeros((32, 32, 3, 4), np.uint8)
Y = np.ones((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"X": X}, "lacks the numbers X or y"),
        ({"y": Y}, "lacks the numbers X or y"),
        ({"X": X.astype(np.float64), "y": Y}, "X is float64"),
        ({"X": X.transpose(3, 0, 1, 2), "y": Y}, r"X is uint8 \(4, 32, 32, 3\)"),
        ({"X": np.zeros((32, 32, 3, 0), np.uint8), "y": Y[:0]}, "X is uint8"),
        ({"X": np.array([[{"a": 1}]], dtype=object), "y": Y}, "lacks the numbers"),
        ({"X": X, "y": Y[:3]}, r"y has the shape \(3, 1\) for 4 images"),
        ({"X": X, "y": np.array(["a", "b"], dtype=object)}, "lacks the numbers"),
        ({"X": X, "y": "text"}, "lacks the numbers"),
        ({"X": X, "y": Y - 1}, "not one of 1 to 10"),
        ({"X": X, "y": Y + 10}, "not one of 1 to 10"),
        ({"X": X, "y": Y + 0.5}, "not one of 1 to 10"),
        ({"X": X, "y": Y * np.nan}, "not one of 1 to 10"),
        ({"X": X, "y": Y * 1j}, "lacks the numbers"),
    ],
)
def test_wrong_svhn_files(content: dict[str, object], said: str, tmp_path: Path) -> None:
    write_svhn(tmp_path)
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(InputError, match=said) as caught:
        OFFICIAL["svhn"].read(tmp_path)
    assert "train_32x32.mat is damaged" in str(caught.value)


def test_svhn_labels_may_be_floats_and_ten_is_zero(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": X, "y": np.array([[10.0, 1.0, 9.0, 10.0]])})
    assert OFFICIAL["svhn"].read(tmp_path).splits["train"].labels.tolist() == [0, 1, 9, 0]


def test_svhn_refuses_more_images_than_there_can_be_before_it_loads_them(tmp_path: Path) -> None:
    write_svhn(tmp_path, 20, 10)
    with pytest.raises(InputError, match="a variable has over 59,368 bytes"):
        svhn.read(tmp_path, "svhn", DIGITS, {"train": 19, "test": 10})


@pytest.mark.parametrize("compress", [True, False])
def test_matlab_files_are_read_as_scipy_reads_them(compress: bool, tmp_path: Path) -> None:
    path = tmp_path / "some.mat"
    dtypes = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
    content: dict[str, NDArray[Any]] = {
        f"{'long_' * i}{dtype}": np.arange(i + 24).astype(dtype) for i, dtype in enumerate(dtypes)
    }
    content |= {"one": np.ones((1, 1), np.uint8), "cube": np.arange(24.0).reshape(2, 3, 4)}
    savemat(path, content | {"text": "words", "cell": np.array([1, "a"], dtype=object)}, do_compression=compress)
    ours, theirs = read_mat(path, 1000), loadmat(path)
    assert sorted(ours) == sorted(content)
    for name in content:
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(ours[name], theirs[name])


def test_a_matlab_file_with_an_unknown_type_code_is_refused(tmp_path: Path) -> None:
    """SciPy's reader looks such a code up outside of its table, which can end the process."""
    write_svhn(tmp_path, 4, 3, compress=False)
    path = tmp_path / "train_32x32.mat"
    content = bytearray(path.read_bytes())
    tag = content.index(struct.pack("<2I", 2, 4 * 32 * 32 * 3))
    content[tag : tag + 4] = struct.pack("<I", 0x9D02)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train_32x32\.mat is damaged: it lacks the numbers X or y"):
        OFFICIAL["svhn"].read(tmp_path)


def test_a_matlab_file_that_claims_four_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    write_svhn(tmp_path, 4, 3, compress=False)
    path = tmp_path / "train_32x32.mat"
    content = bytearray(path.read_bytes())
    content[132:136] = b"\xff" * 4
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(InputError, match="ends before its last variable does"):
        OFFICIAL["svhn"].read(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
