"""A second line of work on a GPU, beside the main one. Knows nothing about what runs there.

Most kernels of small batches leave the chip half idle. What nobody waits for, as the gradients of weights until the
optimiser's step, runs there at the same time. Each line has memory of its own: a tensor that the side line reads must
not be given back to the main one before.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

MOST_BEHIND = 4  # so many pieces of work the side line may be behind: what they read takes memory

Held = tuple[torch.cuda.Event, tuple[Tensor, ...]]


class _Lines:
    def __init__(self, device: torch.device) -> None:
        self.main, self.side = torch.cuda.current_stream(device), _side(device)
        self.held: deque[Held] = deque()
        self.apart = False  # something may be away

    def keep(self, read: tuple[Tensor, ...]) -> None:
        """Until the side line has done what it was given so far."""
        self.held.append((self.side.record_event(), read))
        if len(self.held) > MOST_BEHIND:
            done, _ = self.held.popleft()
            self.main.wait_event(done)


_lines: _Lines | None = None  # for all threads: gradients are computed in another one


@contextmanager
def lines(device: torch.device) -> Iterator[None]:
    """Inside, what is `away` runs beside the rest; when this ends, the main line has it. After an error, too: a capture
    cannot end, and its memory is not given back, while something is away."""
    global _lines
    if device.type != "cuda" or _lines is not None:
        yield
        return
    _lines = _Lines(device)
    try:
        yield
    finally:
        try:
            back()
        finally:
            _lines = None


@contextmanager
def away(*read: Tensor) -> Iterator[None]:
    """What is asked for inside begins when all before it is done, and runs beside what comes after; outside of `lines`,
    or on the side line itself, nothing is different. `read`: what it reads of the main line's, and may be let go of."""
    there = _lines
    if there is None or torch.cuda.current_stream(there.main.device) == there.side:
        yield
        return
    there.side.wait_stream(there.main)
    there.apart = True
    with torch.cuda.stream(there.side):
        yield
    there.keep(read)


def back() -> None:
    """The main line goes on when all that is away is done."""
    if _lines is not None and _lines.apart:
        _lines.main.wait_stream(_lines.side)
        _lines.held.clear()
        _lines.apart = False


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
