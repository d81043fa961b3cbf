"""Arrays of numbers from a MATLAB 5 file. Knows nothing about images; skips cells, structs, texts and the like.

SciPy's reader is not used: it looks up a type code from the file in a table without checking it, and a damaged file
can end the whole process. The format: a header of 128 bytes, then elements, each with a tag (type, size); a variable
is an element of type MATRIX, mostly inside one of type COMPRESSED, whose own elements are flags, dimensions, name and
numbers.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
NUMERIC = range(6, 16)  # MATLAB's classes double, single, int8 … uint64
COMPLEX = 0x0800


def read_mat(path: Path, largest: int) -> dict[str, NDArray[Any]]:
    """The numeric variables by name, each of `largest` bytes at most; raises ValueError and zlib.error."""
    variables: dict[str, NDArray[Any]] = {}
    with path.open("rb") as file:
        if file.read(128)[124:] != b"\x00\x01IM":
            raise ValueError("it is not a little-endian MATLAB 5 file")
        while tag := file.read(8):
            kind, content = _element(file, tag, largest + 1000)  # 1000: names and dimensions
            if kind == MATRIX:
                variables.update(_variable(content))
    return variables


def _element(file: BinaryIO, tag: bytes, largest: int) -> tuple[int, memoryview]:
    kind, size = _tag(tag)
    if size > os.fstat(file.fileno()).st_size - file.tell():
        raise ValueError("it ends before its last variable does")
    if kind == COMPRESSED:
        return _first(_inflate(file, size, largest))
    if size > largest:
        raise ValueError(f"a variable has {size:,} bytes, over {largest:,}")
    return kind, memoryview(file.read(size))


def _tag(tag: bytes) -> tuple[int, int]:
    if len(tag) != 8:
        raise ValueError("it ends inside a tag")
    kind, size = struct.unpack("<2I", tag)
    return kind, size


def _inflate(file: BinaryIO, size: int, largest: int) -> memoryview:
    engine, content = zlib.decompressobj(), bytearray()
    while size:
        chunk = file.read(min(size, 1 << 20))
        size -= len(chunk)
        content += engine.decompress(chunk, largest + 1 - len(content))
        if len(content) > largest:
            raise ValueError(f"a variable has over {largest:,} bytes")
    if not engine.eof:
        raise ValueError("a compressed variable is cut off")
    return memoryview(content)


def _first(content: memoryview) -> tuple[int, memoryview]:
    return next(_elements(content), (0, content))


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The elements that `content` is made of, each padded to 8 bytes; one of 4 bytes or less may lie in its tag."""
    at = 0
    while at < len(content):
        kind, size = _tag(bytes(content[at : at + 8]))
        start, following = at + 8, at + 8 + size + -size % 8
        if kind >> 16:
            kind, size, start, following = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if start + size > min(following, len(content)):
            raise ValueError("a variable is shorter than it says")
        yield kind, content[start : start + size]
        at = following


def _variable(content: memoryview) -> dict[str, NDArray[Any]]:
    """Name and numbers of one variable; nothing where it is not a plain array of numbers."""
    parts = list(islice(_elements(content), 4))
    if len(parts) < 4 or len(parts[0][1]) != 8:
        return {}
    (_, flags), (_, dimensions), (_, name), (kind, numbers) = parts
    (bits,) = struct.unpack("<I", flags[:4])
    if bits & 0xFF not in NUMERIC or bits & COMPLEX or kind not in TYPES:
        return {}
    # Unsigned, so that no dimension is negative and means "whatever fits" to NumPy.
    shape = np.frombuffer(dimensions, "<u4").tolist()
    return {bytes(name).decode("ascii"): np.frombuffer(numbers, TYPES[kind]).reshape(shape, order="F")}
