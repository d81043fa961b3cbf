"""The library and writers that die: at any moment, what is on disk is whole, and the next writer goes on."""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.errors import InputError
from espalier.files import digest
from espalier.library import Change, Library, TaskEntry
from espalier.seeds import generator


def next_change(library: Library) -> Change:
    """One more task: task n has modules that hold n, and leaves an extra that counts n + 1 tasks."""
    number = len(library.tasks)
    names = {f"{block}{number}": block for block in library.blocks}
    modules = {name: (block, {"w": torch.full((200,), float(number))}) for name, block in names.items()}
    task = TaskEntry(f"task{number}", tuple(names), {"number": number})
    return Change(modules, {task.name: task}, {"memory": {"tasks": torch.tensor(number + 1)}})


def check_whole(folder: Path) -> int:
    """The number of tasks in a library all of which must be there."""
    library = Library.open(folder)
    library.verify()
    assert list(library.tasks) == [f"task{number}" for number in range(len(library.tasks))]
    for number, task in enumerate(library.tasks.values()):
        assert task.info == {"number": number}
        assert all(library.state(module)["w"].eq(number).all() for module in task.path)
    assert [int(extra["tasks"]) for extra in library.extras().values()] == [len(library.tasks)] * bool(library.tasks)
    return len(library.tasks)


def check_tidy(folder: Path) -> None:
    """No file is left that nobody needs."""
    library = Library.open(folder)
    modules = {Path(module.file).name for module in library.modules.values()}
    assert set(os.listdir(folder / "modules")) == modules
    assert len(os.listdir(folder / "extras")) == len(library.extras())
    assert set(os.listdir(folder)) == {"library.json", "lock", "modules", "extras"}


# Death at each step, played: every call that touches the disk fails from the nth on, also those that would tidy up.


class DeadError(BaseException):
    pass


@contextmanager
def dies_at(step: int) -> Iterator[list[int]]:
    left = [step]

    def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*values: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise DeadError
            left[0] -= 1
            return call(*values, **named)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, mortal(getattr(os, name)))
        patch.setattr(Path, "unlink", mortal(Path.unlink))
        yield left


def test_a_writer_may_die_at_any_step_of_a_commit(tmp_path: Path) -> None:
    original = Library.create(tmp_path / "original", "tiny", ["stem", "head"])
    with original.writer():
        original.commit(next_change(original))
    seen = []
    for step in range(100):
        library = Library.open(shutil.copytree(original.folder, tmp_path / str(step)))
        with library.writer(), dies_at(step) as left, suppress(DeadError):
            library.commit(next_change(library))
        seen.append(check_whole(library.folder))
        again = Library.open(library.folder)
        with again.writer():
            again.commit(next_change(again))
        assert check_whole(library.folder) == seen[-1] + 1
        check_tidy(library.folder)
        if left[0] > 0:
            break
    # 3 new files and library.json, each synced, renamed and synced in its folder; then the old extra is removed.
    assert seen == [1] * 11 + [2] * 4


# Death for real


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Processes that start fast: torch is imported once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["espalier.library"])
    return context


def write_for_ever(folder: Path, pipe: Connection) -> None:
    library = Library.open(folder)
    with library.writer():
        library.commit(next_change(library))
        pipe.send(os.getpid())
        while True:
            library.commit(next_change(library))


def hold_the_lock(folder: Path, pipe: Connection) -> None:
    with Library.open(folder).writer():
        pipe.send(os.getpid())
        pipe.recv()


@contextmanager
def running(processes: ForkServerContext, work: Callable[[Path, Connection], None], folder: Path) -> Iterator[int]:
    """The id of a process that has the write lock; it is killed at the end."""
    here, there = processes.Pipe()
    process = processes.Process(target=work, args=(folder, there))
    process.start()
    try:
        assert here.poll(30), "the writer never started"
        yield here.recv()
        assert process.is_alive()
    finally:
        process.kill()
        process.join()
        here.close()
        there.close()
    assert process.exitcode == -9


def test_a_killed_process_leaves_no_lock(processes: ForkServerContext, tmp_path: Path) -> None:
    library = Library.create(tmp_path / "lib", "tiny", ["stem", "head"])
    with running(processes, hold_the_lock, library.folder) as pid:
        assert pid != os.getpid()
        with (
            pytest.raises(InputError, match=rf"{library.folder} is being written .*\(process {pid}\)"),
            library.writer(),
        ):
            pass
        Library.open(library.folder).verify()  # readers need no lock
    with library.writer():
        library.commit(next_change(library))
    assert check_whole(library.folder) == 1


def test_a_writer_may_be_killed_at_any_moment(processes: ForkServerContext, tmp_path: Path) -> None:
    folder = Library.create(tmp_path / "lib", "tiny", ["stem", "head"]).folder
    random = generator(0, "kill")
    counts: list[int] = [0]
    stored: dict[str, str] = {}
    for _ in range(10):
        with running(processes, write_for_ever, folder):
            time.sleep(random.uniform(0, 0.06))
        counts.append(check_whole(folder))
        for module in Library.open(folder).modules.values():
            assert stored.setdefault(module.file, digest(folder / module.file)) == module.sha256
    assert counts == sorted(set(counts))  # each writer went on from the last
    library = Library.open(folder)
    with library.writer():
        library.commit(next_change(library))
    assert check_whole(folder) == counts[-1] + 1
    check_tidy(folder)
