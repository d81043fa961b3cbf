"""Several runs side by side, or the parts of runs, a process each. Knows nothing about what they are for.

The processes share the cores, one thread at least for each.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any

import torch

from espalier.data.folder import DataFolder
from espalier.learners import Learner
from espalier.runs.run import Part, stages
from espalier.runs.settings import Settings

Job = tuple[Settings, Learner | None]


def run_many(
    jobs: Sequence[Job], out: Path, data: Path | None = None, device: str = "cpu", workers: int | None = None
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    """Results as they come. What was finished before is not run again."""
    left = {settings: stages(settings, own) for settings, own in jobs}
    cores = len(os.sched_getaffinity(0))
    most = sum(max(map(len, parts)) for parts in left.values())
    count = min(workers or cores, max(1, most))
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(max(1, cores // count),),
    )

    def next_stage(settings: Settings) -> dict[Future[Any], Settings]:
        return {pool.submit(_work, part, settings, out, data, device): settings for part in left[settings].pop(0)}

    try:
        waiting = {future: settings for each in left for future, settings in next_stage(each).items()}
        while waiting:
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                settings = waiting.pop(done)
                result = done.result()
                if settings in waiting.values():
                    continue
                if left[settings]:
                    waiting |= next_stage(settings)
                else:
                    yield settings, result
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


def _work(part: Part, settings: Settings, out: Path, data: Path | None, device: str) -> Any:
    return part(settings, out, _data_folder(data), device)


@cache
def _data_folder(data: Path | None) -> DataFolder:
    """What one run has read, the next in the same process need not read again."""
    return DataFolder(data)
