"""The one write lock of a folder. Knows nothing about what is written.

The system drops the lock with the process that holds it, so a killed writer leaves nothing to clean up.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espalier.errors import InputError


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be locked for writing ({error.strerror}); choose a folder you may write to."
        ) from None
    try:
        _take(handle, folder)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a forked child has it open
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Only for the message: the pid is missing in the instant between taking the lock and writing it.
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise InputError(
            f"{folder} is being written by another writer (process {holder}); wait until it has finished."
        ) from None
    except OSError as error:
        raise InputError(f"{folder} is on a disk without file locks ({error.strerror}); move it to another.") from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
