"""Downloads official files: resumed after a break, checked before they count, from the first address that works.

Knows nothing about datasets beyond names, sizes and checksums. A file appears under its name only when its
checksum is right; until then it is `<name>.part`, which is locked while a process writes to it.
"""

import errno
import fcntl
import hashlib
import os
import re
import urllib.request as web
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from io import FileIO
from pathlib import Path
from urllib.error import HTTPError, URLError

from espalier.data.official import OfficialFile
from espalier.errors import InputError
from espalier.files import digest, sync

Progress = Callable[[str, int, int], None]
"""Called with (file name, bytes done, bytes in all)."""

TIMEOUT = 30.0
CHUNK = 1 << 18
AGENT = "espalier (dataset fetcher)"


class _AddressError(Exception):
    """An address did not give the file; `again` says whether it may when asked once more."""

    def __init__(self, said: str, again: bool = False) -> None:
        super().__init__(" ".join(said.split())[:200])  # a server can say anything
        self.again = again


def fetch(
    files: Sequence[OfficialFile], folder: Path, progress: Progress | None = None, attempts: int = 3
) -> list[Path]:
    """Make sure that all `files` are in `folder`; each address is asked up to `attempts` times."""
    return [_fetch_file(file, folder, progress or _silent, attempts) for file in files]


def _silent(name: str, done: int, total: int) -> None: ...


def _fetch_file(file: OfficialFile, folder: Path, progress: Progress, attempts: int) -> Path:
    target, part = folder / file.name, folder / f"{file.name}.part"
    try:
        if not _is_right(target, file):
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(part) as out:
                # Another process may have finished the file before we got the lock.
                if _is_right(target, file):
                    part.unlink()
                else:
                    _fill(out, part, file, progress, attempts)
                    os.fsync(out.fileno())
                    part.replace(target)
                    sync(folder)
        progress(file.name, file.size, file.size)
        return target
    except OSError as error:  # of the disk: what the network does is a _AddressError
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk that holds {folder} is full, and {file.name} needs {file.size:,} bytes there; "
                "free some space and run again."
            ) from error
        raise InputError(
            f"{file.name} cannot be kept in {folder} ({error.strerror or error}); name a folder that can be written."
        ) from error


def _is_right(path: Path, file: OfficialFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and digest(path, "md5") == file.md5


@contextmanager
def _locked(part: Path) -> Iterator[FileIO]:
    """The part, open and ours alone. Unbuffered, so that a full disk shows in `write` and nowhere later."""
    while True:
        with FileIO(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+") as out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another process is downloading {part}; wait until it is done, then run again."
                ) from None
            # Between open and lock its owner may have renamed it: then we hold the finished file, not the part.
            if part.exists() and os.path.samestat(os.fstat(out.fileno()), part.stat()):
                yield out
                return


def _fill(out: FileIO, part: Path, file: OfficialFile, progress: Progress, attempts: int) -> None:
    """Give the part the right content, or say what every address said."""
    if out.seek(0, os.SEEK_END) >= file.size:
        if _is_right(part, file):
            return
        _empty(out)
    said: dict[str, str] = {}
    urls = list(file.urls)
    for _ in range(attempts):
        for url in tuple(urls):
            try:
                return _download(url, out, file, progress)
            except _AddressError as failure:
                said[url] = str(failure)
                if not failure.again:
                    urls.remove(url)
    if not out.seek(0, os.SEEK_END):
        part.unlink()
    raise InputError(
        f"{file.name} could not be downloaded ({'; '.join(f'{url}: {what}' for url, what in said.items())}); "
        f"run again later, or put the file into {part.parent} by hand ({file.size} bytes, md5 {file.md5})."
    )


def _download(url: str, out: FileIO, file: OfficialFile, progress: Progress) -> None:
    start = out.seek(0, os.SEEK_END)
    with _ask(url, start) as response:
        resumed = response.status == 206
        told = _is_told_size(response, start if resumed else 0, file)
        if not resumed:
            _empty(out)
        done = _copy(response, out, start if resumed else 0, file, progress)
        if told and done < file.size:
            raise _AddressError(f"broke off after {done:,} of {file.size:,} bytes", again=True)
        if not told and (done < file.size or _receive(response, 1)):
            # Without a length, a file that broke off looks like an error page: do not build on it.
            _empty(out)
            sent = f"{done:,}" if done < file.size else f"over {done:,}"
            kind = response.headers.get_content_type()
            raise _AddressError(f"sent {sent} bytes of {kind} instead of {file.size:,}")
    out.seek(0)
    if hashlib.file_digest(out, "md5").hexdigest() != file.md5:
        _empty(out)
        if resumed:  # the wrong bytes may be those of another address, or of another day
            return _download(url, out, file, progress)
        raise _AddressError("sent something else (wrong checksum)")


def _ask(url: str, start: int) -> HTTPResponse:
    """The answer to a request for the bytes from `start`: a 206 that begins there, or a 200 with all of them."""
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response: HTTPResponse = _opener().open(web.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return _ask(url, 0)
        raise _AddressError(
            f"HTTP {error.code} {error.reason}", again=error.code in (408, 429) or error.code >= 500
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise _AddressError(said, again=True) from None
    if response.status == 206 and start and response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        return response
    if response.status == 200:
        return response
    response.close()
    if start:
        return _ask(url, 0)
    raise _AddressError(f"HTTP {response.status} {response.reason}")


def _opener() -> web.OpenerDirector:
    """urllib's own without files, FTP and data: only http and https, also after a redirect."""
    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler,
        web.HTTPHandler,
        web.HTTPSHandler,
        web.HTTPRedirectHandler,
        web.HTTPDefaultErrorHandler,
        web.HTTPErrorProcessor,
        web.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _is_told_size(response: HTTPResponse, start: int, file: OfficialFile) -> bool:
    """Whether the server says how long the file is; if it says anything wrong, nothing is downloaded."""
    match = re.search(r"/(\d+)$", response.headers.get("Content-Range", "")) if start else None
    rest = response.length
    total = int(match[1]) if match else None if rest is None else start + rest
    kind = response.headers.get_content_type()
    if total is None and kind == "text/html":
        raise _AddressError(f"sent a page of {kind} instead of {file.size:,} bytes")
    if total not in (None, file.size):
        raise _AddressError(f"sent {total:,} bytes of {kind} instead of {file.size:,}")
    return total is not None


def _copy(response: HTTPResponse, out: FileIO, done: int, file: OfficialFile, progress: Progress) -> int:
    """Write what comes, but never beyond the file's size; returns how far the file has come."""
    while done < file.size and (chunk := _receive(response, min(CHUNK, file.size - done))):
        rest = memoryview(chunk)
        while rest:
            rest = rest[out.write(rest) :]
        done += len(chunk)
        progress(file.name, done, file.size)
    return done


def _receive(response: HTTPResponse, most: int) -> bytes:
    """Some bytes, or none when the body ends or breaks off: whether it is whole is for the caller to count."""
    try:
        return response.read1(most)
    except (OSError, HTTPException, ValueError):
        return b""


def _empty(out: FileIO) -> None:
    if out.seek(0, os.SEEK_END):
        out.truncate(0)
    out.seek(0)
