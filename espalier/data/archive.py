"""What the readers of official files share: finding a file, walking an archive, calling damage by its name.

Knows nothing about images or the layout of any dataset. Nothing is ever extracted to disk.
"""

import gzip
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from espalier.data.imageset import Dataset, ImageSet
from espalier.errors import InputError, MissingDataError


def find(folder: Path, file: str, name: str) -> Path:
    path = folder / file
    if not path.is_file():
        raise MissingDataError(f"{path} is not there; run `espalier data fetch {name}` or put the file there by hand.")
    return path


def damaged(path: Path, what: str, name: str) -> InputError:
    return InputError(f"{path} is damaged: {what}; delete it and run `espalier data fetch {name}` again.")


@contextmanager
def reading(path: Path, name: str, member: str = "") -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault: say so in one sentence.

    gzip, tarfile and Pillow raise more kinds of exceptions on damaged files than they document, so all
    are caught; keep the block down to the calls that parse the file.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path} cannot be read ({error.strerror}); check the file and its rights.") from error
        said = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise damaged(path, f"{member}: {said}" if member else said, name) from error


def members(path: Path, name: str, wanted: Callable[[str], bool], largest: int) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a .tar.gz with their content, in one pass; none over `largest` bytes."""
    with reading(path, name), gzip.open(path) as plain:
        # A stream over our own gzip file, so that its checksum is tested when the rest is read below.
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                _refuse_unsafe(path, member.name)
                if not (member.isreg() and wanted(member.name)):
                    continue
                if member.size > largest:
                    raise damaged(path, f"{member.name} holds {member.size:,} bytes, over {largest:,}", name)
                file = tar.extractfile(member)
                assert file is not None  # only None for what is not a regular file
                yield member.name, file.read()
        while plain.read(1 << 20):
            pass


def _refuse_unsafe(path: Path, member: str) -> None:
    if member.startswith("/") or ".." in PurePosixPath(member).parts:
        raise InputError(
            f"{path} holds a member with the unsafe name {member!r}, which no official archive does; "
            "delete it and download it from its official address."
        )


def assemble(name: str, splits: Mapping[str, ImageSet], official: Mapping[str, int]) -> Dataset:
    """The dataset, with a note where it holds fewer images than the `official` counts say."""
    lacking = [
        f"{len(splits[split]):,} of {count:,} {split} images"
        for split, count in official.items()
        if len(splits[split]) != count
    ]
    return Dataset(name, splits, complete=not lacking, note="; ".join(lacking))
