"""What can be known of the kernels for Hopper without one: that they compile, and who does what."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from espalier.nets import tiles


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no compiler for CUDA here")
@pytest.mark.parametrize("ending", [tiles.OF_WEIGHTS, *tiles.ENDINGS])
def test_the_kernels_compile(ending: str, tmp_path: Path) -> None:
    """Also that their shared memory is what they are started with; they check it themselves."""
    file = tmp_path / "kernel.cu"
    file.write_text(tiles.source(ending))
    chip = "-gencode=arch=compute_90a,code=sm_90a"
    done = subprocess.run(["nvcc", chip, "-cubin", "-o", "kernel.cubin", file], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "kernel.cubin").stat().st_size


@pytest.mark.parametrize("members", [1, 6, 12, 18, 42, 102])
@pytest.mark.parametrize("count", [1, 2, 256, 1024])
def test_every_block_of_threads_has_tiles_and_all_end_about_together(members: int, count: int) -> None:
    blocks = 132
    shares = tiles._shares(members, count, blocks)
    assert 1 <= shares <= min(count, blocks)
    rounds = -(-members * shares // blocks) * -(-count // shares)
    least = members * count / blocks  # were they dealt out evenly
    assert rounds <= max(1.25 * least, least + 4)


def test_elsewhere_they_are_not_used() -> None:
    x, weight = torch.zeros(2, 64, 16, 16, dtype=torch.bfloat16), torch.zeros(1, 64, 64, 3, 3)
    assert not tiles.usable(x, weight)


def test_they_are_built_while_something_else_is_done_but_not_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def build(device: torch.device) -> None:
        time.sleep(0.2)
        done.append(f"built for {device}")

    monkeypatch.setattr(tiles, "_kernels", build)
    with tiles.built_meanwhile(torch.device("cuda", 0)):
        done.append("read")
    assert done == ["read", "built for cuda:0"]
    with tiles.built_meanwhile(torch.device("cpu")):
        done.append("read more")
    assert done[2:] == ["read more"]


def test_no_toolkit_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(OSError, match="CUDA_HOME"):
        cpp_extension.include_paths("cuda")
    with tiles._without_a_toolkit():
        assert cpp_extension.include_paths("cuda")
    assert cpp_extension.CUDA_HOME is None
