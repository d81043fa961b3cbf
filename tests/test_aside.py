"""What runs beside the main line of a GPU gives the same bits as in line with it; and what may run there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from espalier.device import release
from espalier.nets import aside, backbone
from espalier.training import Member, train
from espalier.training.job import FAST, SLOW, Speed
from espalier.training.trie import Trie
from tests.nets_help import RATES, candidate, job, modules, quiet, random, task

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
TINY = backbone("tiny", (3, 8, 8), 3)


def divides(*codes: str) -> bool:
    members = [Member(candidate(code, TINY), rate) for code in codes for rate in RATES]
    trie = Trie(TINY, members, modules(TINY, "a", "b"), [block.init(random(0)) for block in TINY.blocks])
    return trie._divides()


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        (["aaaa.", "aaa..", "aa...", "....."], True),
        (["aaaa.", "bAAAA", "....."], True),  # copies are trained as fresh ones are
        (["aaaa.", "aaa..", ".aaaa", "....."], True),
        ([".....", ".aaaa"], True),
        (["aaaa.", "aaa..", "aa..."], False),  # nobody is live before
        (["aaa..", ".aaaa"], False),  # nobody to join
        (["a.aa.", "....."], False),
    ],
)
def test_only_those_who_join_others_run_beside_them(codes: list[str], wanted: bool) -> None:
    assert divides(*codes) == wanted


def test_elsewhere_nothing_is_different() -> None:
    with aside.lines(torch.device("cpu")):
        assert aside._lines is None
        with aside.away(torch.zeros(1)):
            pass
        aside.back()


@ON_GPU
def test_lines_end_with_an_error() -> None:
    with pytest.raises(ValueError, match="no"), aside.lines(torch.device("cuda")):
        raise ValueError("no")
    assert aside._lines is None


@ON_GPU
def test_a_capture_can_end_after_an_error_and_gives_its_memory_back() -> None:
    x, graph = torch.zeros(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
    release(x.device)
    before = torch.cuda.memory_reserved()

    def fail() -> None:
        with aside.lines(x.device):
            kept = x + 1
            with aside.away(kept):
                kept += 1
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"), torch.cuda.graph(graph):
        fail()
    del graph
    release(x.device)
    assert torch.cuda.memory_reserved() == before


@contextmanager
def nowhere(device: torch.device) -> Iterator[None]:
    yield


@contextmanager
def late(*read: Tensor) -> Iterator[None]:
    """What is away begins long after it could."""
    with AWAY(*read):
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        yield


def late_back() -> None:
    """The main line is late."""
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    BACK()


AWAY, BACK = aside.away, aside.back
CYCLES = 400_000  # about 0.2 ms
SUFFIXES = ["aaaaaa.", "aaaaa..", "aaa....", "aa.....", "a......", ".......", ".aaaaaa"]
MIXED = ["aaaaaa.", "aaaAAAA", "aAaA.A.", ".aaaaa.", "a.a.a.."]


@ON_GPU
@pytest.mark.parametrize(
    ("codes", "size", "speed"),
    [
        (SUFFIXES, 32, FAST),
        (SUFFIXES, 16, FAST),
        (SUFFIXES, 32, Speed(bf16=True)),
        (SUFFIXES, 16, SLOW),
        (MIXED, 32, FAST),
        (MIXED, 32, Speed(bf16=True)),
    ],
)
def test_the_bits_are_the_same_however_late_a_line_is(
    codes: list[str], size: int, speed: Speed, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job("resnet", size=size, max_epochs=8, patience=10, batch=64)
    there = replace(
        made,
        task=task(size=size, train=150).to("cuda"),
        modules={name: {key: t.cuda() for key, t in state.items()} for name, state in made.modules.items()},
        speed=speed,
    )
    chosen = [candidate(code, made.backbone) for code in codes]
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for name, replaced in (("lines", nowhere), ("away", late), ("back", late_back), ("lines", aside.lines)):
        with monkeypatch.context() as patched:
            patched.setattr(aside, name, replaced)
            found.append(train(there, chosen, RATES, quiet).results)
    for results in found[1:]:
        for one, other in zip(found[0], results, strict=True):
            assert (one.val_accuracy, one.best_step, one.steps) == (other.val_accuracy, other.best_step, other.steps)
            for mine, theirs in zip(one.states, other.states, strict=True):
                assert (mine or {}).keys() == (theirs or {}).keys()
                assert all(torch.equal(tensor, (theirs or {})[name]) for name, tensor in (mine or {}).items())
