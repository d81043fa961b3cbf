"""Several runs side by side, or the parts of runs, a process each. Knows nothing about what they are for.

The processes share the cores, one thread at least for each, whether all of them have something to do or not. A process
has one device for all it does: kernels that were loaded stay on the one they were loaded for.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import cycle, islice
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch

from espalier.data.folder import DataFolder
from espalier.device import names
from espalier.errors import InputError
from espalier.learners import Learner
from espalier.runs.run import Part, stages
from espalier.runs.settings import Settings

Job = tuple[Settings, Learner | None]
Told = Callable[[int, int], None]  # how many parts of all runs are done, how many there are


def run_many(
    jobs: Sequence[Job],
    out: Path,
    data: Path | None = None,
    device: str = "cpu",
    workers: int | None = None,
    told: Told = lambda done, parts: None,
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    """Results as they come. What was finished before is not run again. Of several devices, as in "cuda:0,cuda:1", every
    worker has one, in turn."""
    later = {settings: stages(settings, out, own) for settings, own in jobs}
    if len(later) < len(jobs):
        raise InputError("two of these runs would share a folder; give each another stream, learner's name or seed.")
    sizes = [[len(stage) for stage in own] for own in later.values()]
    done, parts = 0, sum(map(sum, sizes))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS
    count = min(workers or cores, max(1, sum(map(max, sizes))))
    spawning = multiprocessing.get_context("spawn")
    waiting = spawning.SimpleQueue()
    for name in islice(cycle(names(device)), count):
        waiting.put(name)
    pool = ProcessPoolExecutor(count, spawning, initializer=_prepare, initargs=(max(1, cores // count), waiting))
    ready = [(settings, part) for settings, own in later.items() for part in own.pop(0)]
    running: dict[Future[Any], Settings] = {}
    try:
        while ready or running:
            while ready and len(running) < count:  # no more: what the pool has in its queue it cannot give back
                settings, part = ready.pop(0)
                running[pool.submit(_work, part, settings, out, data)] = settings
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                settings, result = running.pop(future), future.result()
                done += 1
                told(done, parts)
                if settings in running.values() or any(settings == each for each, _ in ready):
                    continue
                if later[settings]:
                    ready += [(settings, part) for part in later[settings].pop(0)]
                else:
                    yield settings, result
    except BrokenProcessPool as error:
        raise InputError(
            "a process of these runs was killed, perhaps for want of memory; give the same command again, "
            "with fewer workers: what was learned is kept."
        ) from error
    finally:  # after an error, what has not begun does not begin
        pool.shutdown(cancel_futures=True)


_device = "cpu"  # of this process, if it is a worker


def _prepare(threads: int, waiting: SimpleQueue[str]) -> None:
    global _device
    _end_with_parent()
    _device = waiting.get()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """Else a worker whose parent was killed would go on, and then wait for ever for more."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)  # as if it had been killed too, which a run survives

    threading.Thread(target=follow, daemon=True).start()


def _work(part: Part, settings: Settings, out: Path, data: Path | None) -> Any:
    return part(settings, out, _data_folder(data), _device)


@cache
def _data_folder(data: Path | None) -> DataFolder:
    """What one run has read, the next in the same process need not read again."""
    return DataFolder(data)
