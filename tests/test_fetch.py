"""The downloader against real servers on loopback, good and bad ones."""

import fcntl
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from espalier.data.fetch import fetch
from espalier.data.official import OfficialFile
from espalier.errors import InputError

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes: several chunks
HALF = len(CONTENT) // 2
NAME = "data.bin"
PAGE = b"<html>quota exceeded</html>"

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server that gives one answer to everything, and remembers the Range of every request."""

    def __init__(self, answer: Answer) -> None:
        self.ranges: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.ranges.append(self.headers["Range"])
                answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = False  # so that closing the server waits for its threads
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self.http.server_port}/{NAME}"

    def __enter__(self) -> "Server":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Server]]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(Server(answer))


Serve = Callable[[Answer], Server]


def send(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
    handler.send_response(status)
    for key, value in headers.items():
        handler.send_header(key, value)
    handler.end_headers()
    try:
        handler.wfile.write(body)
    except OSError:  # the client has heard enough
        handler.close_connection = True


def good(handler: BaseHTTPRequestHandler, content: bytes = CONTENT, upto: int = len(CONTENT)) -> None:
    """The file, or the rest of it that was asked for; the body stops at `upto`, whatever the headers say."""
    asked = handler.headers["Range"]
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(content) - start)}
    if asked:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    send(handler, 206 if asked else 200, headers, content[start:upto])


def dying(handler: BaseHTTPRequestHandler) -> None:
    good(handler, upto=HALF)


def other_content(handler: BaseHTTPRequestHandler) -> None:
    good(handler, content=CONTENT[::-1])


def without_range(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {"Content-Length": str(len(CONTENT))}, CONTENT)


def range_refused(handler: BaseHTTPRequestHandler) -> None:
    if handler.headers["Range"]:
        send(handler, 416, {"Content-Length": "0"}, b"")
    else:
        good(handler)


def wrong_range(handler: BaseHTTPRequestHandler) -> None:
    if handler.headers["Range"]:
        headers = {"Content-Range": f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"}
        send(handler, 206, headers | {"Content-Length": str(len(CONTENT))}, CONTENT)
    else:
        good(handler)


def page(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(PAGE))}, PAGE)


def page_of_no_length(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {"Content-Type": "text/html"}, PAGE)


def text_of_no_length(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {"Content-Type": "text/plain"}, b"quota exceeded")


def good_of_no_length(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {}, CONTENT)


def endless(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {}, CONTENT + b"and more")


def broken_chunks(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, {"Transfer-Encoding": "chunked"}, b"10\r\n0123456789abcdef\r\nZZ\r\n")


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"220 welcome to something else\r\n")


def status(code: int) -> Answer:
    return lambda handler: send(handler, code, {"Content-Length": "0"}, b"")


def redirect(target: str) -> Answer:
    return lambda handler: send(handler, 302, {"Location": target, "Content-Length": "0"}, b"")


def described(*servers: Server, content: bytes = CONTENT) -> OfficialFile:
    return OfficialFile(NAME, len(content), hashlib.md5(content).hexdigest(), tuple(s.url for s in servers))


def assert_fetched(folder: Path) -> None:
    assert (folder / NAME).read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_a_file_is_downloaded_once(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    folder = tmp_path / "new" / "folder"
    seen: list[tuple[str, int, int]] = []
    paths = fetch([described(server)], folder, lambda *step: seen.append(step))
    assert paths == [folder / NAME]
    assert_fetched(folder)
    assert seen[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert len(seen) > 2
    assert fetch([described(server)], folder) == paths
    assert server.ranges == [None]


def test_a_wrong_file_under_the_name_is_replaced(serve: Serve, tmp_path: Path) -> None:
    for wrong in (PAGE, CONTENT[::-1]):
        (tmp_path / NAME).write_bytes(wrong)
        fetch([described(serve(good))], tmp_path)
        assert_fetched(tmp_path)


def test_a_part_is_resumed(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:HALF])
    fetch([described(server)], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == [f"bytes={HALF}-"]


def test_a_part_that_is_whole_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    fetch([described()], tmp_path)
    assert_fetched(tmp_path)


@pytest.mark.parametrize("part", [CONTENT + b"x", CONTENT[::-1]], ids=["too long", "wrong content"])
def test_a_useless_part_is_begun_again(serve: Serve, tmp_path: Path, part: bytes) -> None:
    server = serve(good)
    (tmp_path / f"{NAME}.part").write_bytes(part)
    fetch([described(server)], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == [None]


def test_a_part_with_a_wrong_beginning_is_begun_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * HALF)
    fetch([described(server)], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == [f"bytes={HALF}-", None]


@pytest.mark.parametrize(
    ("answer", "asked"),
    [(without_range, 1), (range_refused, 2), (wrong_range, 2)],
)
def test_a_server_that_cannot_resume_sends_all(serve: Serve, tmp_path: Path, answer: Answer, asked: int) -> None:
    server = serve(answer)
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:HALF])
    fetch([described(server)], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == [f"bytes={HALF}-", None][:asked]


def test_after_a_break_the_next_address_sends_the_rest(serve: Serve, tmp_path: Path) -> None:
    first, second = serve(dying), serve(good)
    fetch([described(first, second)], tmp_path)
    assert_fetched(tmp_path)
    assert first.ranges == [None]
    assert second.ranges == [f"bytes={HALF}-"]


def test_after_a_break_the_only_address_is_asked_again(serve: Serve, tmp_path: Path) -> None:
    answers = iter((dying, good))
    server = serve(lambda handler: next(answers)(handler))
    fetch([described(server)], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == [None, f"bytes={HALF}-"]


def test_what_came_before_a_break_is_kept_for_the_next_run(serve: Serve, tmp_path: Path) -> None:
    server = serve(dying)
    with pytest.raises(InputError, match="broke off after 512,000 of 1,024,000 bytes"):
        fetch([described(server)], tmp_path, attempts=2)
    assert server.ranges == [None, f"bytes={HALF}-"]
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.part"]
    assert (tmp_path / f"{NAME}.part").read_bytes() == CONTENT[:HALF]


BAD: dict[str, tuple[Answer, str]] = {
    "404": (status(404), "HTTP 404 Not Found"),
    "503": (status(503), "HTTP 503"),
    "204": (status(204), "HTTP 204"),
    "page": (page, "sent 27 bytes of text/html instead of 1,024,000"),
    "page of no length": (page_of_no_length, "sent a page of text/html instead of 1,024,000 bytes"),
    "text of no length": (text_of_no_length, "sent 14 bytes of text/plain instead of 1,024,000"),
    "too long": (endless, "sent over 1,024,000 bytes"),
    "broken chunks": (broken_chunks, "sent 16 bytes of text/plain instead"),
    "wrong checksum": (other_content, "wrong checksum"),
    "no http": (no_http, "220 welcome"),
    "redirect to a file": (redirect("file:///etc/hostname"), "HTTP 302"),
    "redirect to ftp": (redirect("ftp://127.0.0.1/x"), "unknown url type: ftp"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_address_is_passed_over(serve: Serve, tmp_path: Path, kind: str) -> None:
    fetch([described(serve(BAD[kind][0]), serve(good))], tmp_path)
    assert_fetched(tmp_path)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_address_is_quoted_and_leaves_nothing(serve: Serve, tmp_path: Path, kind: str) -> None:
    server = serve(BAD[kind][0])
    with pytest.raises(InputError, match=BAD[kind][1]) as caught:
        fetch([described(server)], tmp_path)
    assert str(caught.value).startswith(f"{NAME} could not be downloaded ({server.url}: ")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["404", "503", "page", "page of no length", "no http"])
def test_a_bad_address_does_not_cost_the_part(serve: Serve, tmp_path: Path, kind: str) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:HALF])
    second = serve(good)
    fetch([described(serve(BAD[kind][0]), second)], tmp_path)
    assert_fetched(tmp_path)
    assert second.ranges == [f"bytes={HALF}-"]


def test_only_what_may_pass_is_asked_again(serve: Serve, tmp_path: Path) -> None:
    gone, busy = serve(status(404)), serve(status(503))
    with pytest.raises(InputError, match="HTTP 404"):
        fetch([described(gone, busy)], tmp_path, attempts=3)
    assert (len(gone.ranges), len(busy.ranges)) == (1, 3)


def test_a_file_of_no_told_length_is_taken_if_right(serve: Serve, tmp_path: Path) -> None:
    fetch([described(serve(good_of_no_length))], tmp_path)
    assert_fetched(tmp_path)


def test_a_redirect_keeps_the_place_to_resume_from(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:HALF])
    fetch([described(serve(redirect(server.url)))], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == [f"bytes={HALF}-"]


def test_all_addresses_failing_tells_what_each_said_and_the_cure(serve: Serve, tmp_path: Path) -> None:
    gone, full = serve(status(404)), serve(page)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}/{NAME}"
    file = described(gone, full)
    with pytest.raises(InputError) as caught:
        fetch([replace(file, urls=(*file.urls, closed))], tmp_path)
    message = str(caught.value)
    assert f"{gone.url}: HTTP 404 Not Found" in message
    assert f"{full.url}: sent 27 bytes of text/html instead of 1,024,000" in message
    assert f"{closed}: Connection refused" in message
    assert f"put the file into {tmp_path} by hand" in message
    assert f"(1024000 bytes, md5 {hashlib.md5(CONTENT).hexdigest()})" in message


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "no address", "http://[bad/"])
def test_only_http_is_spoken(url: str, tmp_path: Path) -> None:
    file = OfficialFile(NAME, 10, "0" * 32, (url,))
    with pytest.raises(InputError, match="could not be downloaded"):
        fetch([file], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_space_needed(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").symlink_to("/dev/full")
    with pytest.raises(InputError, match="is full") as caught:
        fetch([described(serve(good))], tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "1,024,000 bytes" in str(caught.value)
    assert not (tmp_path / NAME).exists()


def test_a_folder_that_is_a_file_is_told(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be kept in"):
        fetch([described(serve(good))], tmp_path / "file")


def test_a_second_process_is_sent_away_and_harms_nothing(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    part = tmp_path / f"{NAME}.part"
    with part.open("wb", buffering=0) as out:
        out.write(CONTENT[:HALF])
        fcntl.flock(out, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading"):
            fetch([described(server)], tmp_path)
    assert part.read_bytes() == CONTENT[:HALF]
    assert server.ranges == []


def test_a_part_renamed_before_it_was_locked_is_left_alone(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process finishes between our opening of the part and our lock on it."""
    part, target = tmp_path / f"{NAME}.part", tmp_path / NAME
    part.write_bytes(CONTENT)
    real = fcntl.flock

    def finish_first(handle: int, operation: int) -> None:
        if not target.exists():
            os.rename(part, target)
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    server = serve(other_content)
    fetch([described(server)], tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == []
