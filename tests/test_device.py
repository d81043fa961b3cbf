"""The device and how cuDNN chooses kernels there."""

from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.device import AS_IN_RUNS, AS_TORCH_COMES, Flags, cudnn, named, names
from espalier.errors import InputError
from espalier.runs import run
from tests.small_streams import install, settings

install()
HERE = "cuda" if torch.cuda.is_available() else "cpu"


def now() -> tuple[bool, ...]:
    flags = torch.backends.cudnn
    return flags.deterministic, flags.allow_tf32, flags.benchmark


def test_on_a_cpu_the_callers_flags_are_not_even_read(tmp_path: Path) -> None:
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        with pytest.raises(RuntimeError, match="legacy"):
            now()
        run(settings("independent"), tmp_path)
        assert convolutions.fp32_precision == "ieee"
    finally:
        convolutions.fp32_precision = before


def test_several_devices_are_named_in_one_word() -> None:
    assert names("cuda:0, cuda:1,cuda:0") == ["cuda:0", "cuda:1"]
    assert named("cpu:0") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cpu:9", "cuda:9", "gpu", "", "mps", "meta"])
def test_a_device_that_is_not_there_is_told(name: str) -> None:
    with pytest.raises(InputError, match=f"no device '{name}' here"):
        named(name)


def test_a_build_for_cpus_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(InputError, match="build of torch is for CPUs alone"):
        named("cuda:9")
    with pytest.raises(InputError, match="use cpu"):
        named("gpu")


def test_a_full_device_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*size: int, device: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(torch.OutOfMemoryError):
        named("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_in_runs_float32_is_float32() -> None:
    x, weight = torch.randn(8, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    exact = torch.conv2d(x.double(), weight.double())

    def error(flags: Flags) -> float:
        with cudnn(flags):
            return float((torch.conv2d(x, weight) - exact).abs().max())

    assert error(AS_IN_RUNS) < 1e-3
    assert error(AS_TORCH_COMES) > 1e-2


def test_flags_are_put_back() -> None:
    before = now()
    with cudnn(AS_IN_RUNS):
        assert now() == (True, False, False)
        with cudnn(AS_TORCH_COMES):
            assert now() == (False, True, False)
        assert now() == (True, False, False)
    assert now() == before


def test_a_run_leaves_the_callers_flags_as_they_were(tmp_path: Path) -> None:
    with cudnn(AS_TORCH_COMES):
        run(settings("independent"), tmp_path, device=HERE)
        assert now() == (False, True, False)
