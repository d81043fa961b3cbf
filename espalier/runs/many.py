"""Several runs side by side, a process each. Knows nothing about what they are for.

The processes share the cores, one thread at least for each.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import torch

from espalier.data.folder import DataFolder
from espalier.learners import Learner
from espalier.runs.run import run
from espalier.runs.settings import Settings

Job = tuple[Settings, Learner | None]


def run_many(
    jobs: Sequence[Job], out: Path, data: Path | None = None, device: str = "cpu", workers: int | None = None
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    """Results as they come. What was finished before is not run again."""
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0))
    count = min(workers or cores, max(1, len(jobs)))
    threads = max(1, cores // count)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(threads,))
    try:
        waiting = {pool.submit(_work, settings, own, out, data, device): settings for settings, own in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:  # after an error, what has not begun does not begin
        pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    _end_with_parent()


def _end_with_parent() -> None:
    """Else a worker whose parent was killed would go on, and then wait for ever for more."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)  # as if it had been killed too, which a run survives

    threading.Thread(target=wait, daemon=True).start()


def _work(settings: Settings, own: Learner | None, out: Path, data: Path | None, device: str) -> dict[str, Any]:
    return run(settings, out, _data_folder(data), device, own_learner=own)


@cache
def _data_folder(data: Path | None) -> DataFolder:
    """What one run has read, the next in the same process need not read again."""
    return DataFolder(data)
