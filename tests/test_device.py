"""The device and how cuDNN chooses kernels there."""

from pathlib import Path

import pytest
import torch

from espalier.device import AS_IN_RUNS, AS_TORCH_COMES, cudnn
from espalier.runs import run
from tests.small_streams import install, settings

install()


def now() -> tuple[bool, ...]:
    flags = torch.backends.cudnn
    return flags.deterministic, flags.allow_tf32, flags.benchmark


def test_flags_are_put_back() -> None:
    before = now()
    with cudnn(AS_IN_RUNS):
        assert now() == (True, False, False)
        with cudnn(AS_TORCH_COMES):
            assert now() == (False, True, False)
        assert now() == (True, False, False)
    assert now() == before


def test_a_run_leaves_the_callers_flags_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = now()
    run(settings("independent"), tmp_path)
    assert now() == before
