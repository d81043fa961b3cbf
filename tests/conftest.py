"""What the tests share. Real images are used where they lie beside the checkout, and never required."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.data import DataFolder
from espalier.library import Library
from espalier.runs import run
from tests.fakes import fake_paper_folder
from tests.nets_help import doubles
from tests.small_library import BLOCKS, change, commit
from tests.small_streams import install, settings
from tests.tables_help import TUNING
from tests.tables_help import write_run as table_run

# The tests run as one process per core: more threads than that only wait for each other.
torch.set_num_threads(1)

BESIDE = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def real_data() -> DataFolder:
    if not (BESIDE / "data" / "cifar10" / "pack.json").is_file():
        pytest.skip("needs real images: no image-packs in ../shared/data")
    return DataFolder(BESIDE / "data")


@pytest.fixture(scope="session")
def paper_files() -> Path:
    if not (BESIDE / "paper" / "s_long_tasks.csv").is_file():
        pytest.skip("needs the paper's tables: no ../shared/paper")
    return BESIDE / "paper"


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, which tests leave as it is."""
    install()
    out = tmp_path_factory.mktemp("runs")
    run(settings("mntdp-d"), out)
    return out / settings("mntdp-d").folder_name


@pytest.fixture(scope="session")
def fake_data() -> DataFolder:
    return fake_paper_folder()


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Two seeds of two learners, and one of a third that was tuned on the stream and had a part of the data."""
    out = tmp_path / "runs"
    for seed, last in ((0, 0.375), (1, 0.5)):
        table_run(out, "independent", seed, end=(0.75, last), avg_accuracy=0.625 + seed / 8, memory_mb=14.6)
    for seed, last in ((0, 0.75), (1, 0.75)):
        table_run(out, "mntdp-d", seed, end=(0.75, last), avg_accuracy=0.75)
    forgot: dict[str, Any] = {"avg_accuracy": 0.375, "forgetting": -0.125, "tflops": 0.0312}
    table_run(out, "ewc", end=(0.25, 0.5), learned=(0.75,), state="partial", tuning=TUNING, **forgot)
    return out


@pytest.fixture
def in_float64() -> Iterator[None]:
    with doubles():
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small library with one task, which tests leave as it is."""
    made = Library.create(tmp_path_factory.mktemp("libraries") / "original", "tiny", BLOCKS)
    commit(made, change("t0"))
    return made.folder


@pytest.fixture
def library(original: Path, tmp_path: Path) -> Library:
    """A library with one task. A copy, for making one waits for the disk."""
    return Library.open(shutil.copytree(original, tmp_path / "lib"))
