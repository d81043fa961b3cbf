"""The command line as a user meets it: a process, its output, its exit code."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from espalier.cli import app, main
from espalier.cli.run import watching
from espalier.data import DataFolder
from espalier.runs import Moment, Settings, Watch
from tests.official_files import write_mnist


def espalier(*arguments: str | Path, data: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from espalier.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "ESPALIER_DATA": str(data), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def write_class_folders(folder: Path, classes: int = 2, images: int = 5) -> Path:
    for c in range(classes):
        (folder / f"class{c}").mkdir(parents=True)
        for i in range(images):
            Image.new("RGB", (40, 30), (c * 90, i * 20, 7)).save(folder / f"class{c}" / f"{i}.png")
    return folder


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, and one line that holds the words: no traceback."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


def test_streams_lists_all_and_says_what_is_lacking(tmp_path: Path) -> None:
    listing = espalier("streams", data=tmp_path)
    assert listing.returncode == 0
    lines = {line.split()[0]: line for line in listing.stdout.splitlines() if line.strip()}
    assert "lacks cifar10, mnist, dtd, fashion-mnist, svhn" in lines["s_minus"]
    assert "ready" in lines["s_minus_mini"]


def test_a_stream_is_shown_with_its_picture(tmp_path: Path) -> None:
    shown = espalier("streams", "s_in_mini", "--out", tmp_path / "out", data=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("shapes on") == 2
    with Image.open(tmp_path / "out" / "s_in_mini-seed0.png") as sheet:
        assert sheet.width > 1000
        assert len(sheet.getcolors(10**7) or []) > 1000, "there is something on it"


def test_a_stream_without_its_data_prints_the_table_and_the_cure(tmp_path: Path) -> None:
    shown = espalier("streams", "s_out", data=tmp_path)
    assert shown.stdout.count("cifar10") == 2
    assert_refused(shown, "espalier data fetch cifar10 mnist", "--data")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["streams", "s_minux"], ["there is no stream 's_minux'", "s_minus"]),
        (["data", "fetch", "imagenet"], ["nothing to fetch for imagenet", "cifar10"]),
        (["data", "verify"], ["nothing to verify"]),
        (["data", "verify", "nothing"], ["1 of 1 datasets"]),
        (["data", "pack", "nothing"], ["does not exist", "folder of class folders"]),
        (["data", "pack", "digits", "--name", "mnist"], ["'mnist' is the name of a dataset that streams use"]),
        (["data", "list", "--data", "pyproject.toml"], ["is a file, not a data folder"]),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    assert_refused(espalier(*arguments, data=tmp_path), *words)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = espalier("streams", "s_minux", "--debug", data=tmp_path)
    assert "Traceback" in result.stderr


def test_unknown_options_exit_with_2(tmp_path: Path) -> None:
    assert espalier("streams", "--nonsense", data=tmp_path).returncode == 2


def test_list_tells_whole_partial_and_missing_apart(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    write_mnist(tmp_path / "mnist", 20)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pack.json").write_text("{")
    listing = espalier("data", "list", data=tmp_path)
    assert listing.returncode == 0, listing.stderr
    lines = {line.split()[0]: line for line in listing.stdout.splitlines() if line.strip()}
    assert "partial" in lines["mnist"]
    assert "missing" in lines["cifar10"]
    assert "complete" in lines["shapes"]
    assert "damaged" in lines["broken"]


def test_what_is_damaged_or_too_small_does_not_end_the_lists(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "pack.json").write_text("{")
    for command in (["data", "list"], ["streams"]):
        listing = espalier(*command, data=tmp_path)
        assert listing.returncode == 0, listing.stderr
        lines = {line.split()[0]: line for line in listing.stdout.splitlines() if line.strip()}
        assert "pack.json" in lines["s_minus"]
        assert "ready" in lines["s_minus_mini"]


def test_names_are_not_taken_for_markup(tmp_path: Path) -> None:
    folder = tmp_path / "my [red] data [bold]"
    folder.mkdir()
    assert f"Data folder: {folder}" in espalier("data", "list", data=folder).stdout


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(espalier("streams", "s_pl_mini", "--out", tmp_path / "file", data=tmp_path), "file")


def test_arguments_that_cannot_be_are_one_sentence(tmp_path: Path) -> None:
    assert_refused(espalier("streams", "s_pl_mini", "--seed", "-1", data=tmp_path), "--seed", "--help")
    assert_refused(espalier("nonsense", data=tmp_path), "nonsense")


def test_benchmarks_print_their_tables(tmp_path: Path) -> None:
    table = espalier("bench", "streams", "s_pl_mini", "s_minus", "--tasks", "2", data=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "s_pl_mini" in table.stdout
    assert "s_minus is left out: it lacks cifar10" in table.stdout
    assert "20 tasks" in espalier("bench", "walk", "s_long_mini", data=tmp_path).stdout


def test_the_long_stream_fits_into_two_gibibytes(real_data: DataFolder) -> None:
    walked = espalier("bench", "walk", "s_long", data=real_data.path)
    assert walked.returncode == 0, walked.stderr
    match = re.search(r"([\d.]+) GiB", walked.stdout)
    assert match is not None
    assert float(match[1]) < 2


def test_own_images_become_a_pack_that_is_found_and_verified(tmp_path: Path) -> None:
    pictures = write_class_folders(tmp_path / "Pets", images=6)
    packed = espalier("data", "pack", pictures, "--size", "16", data=tmp_path / "data")
    assert packed.returncode == 0, packed.stderr
    assert "12 images of 2 classes" in packed.stdout
    assert "good" in espalier("data", "verify", "pets", data=tmp_path / "data").stdout
    assert "pets" in espalier("data", "list", data=tmp_path / "data").stdout
    again = espalier("data", "pack", pictures, data=tmp_path / "data")
    assert_refused(again, "pets")
    sheet = next((tmp_path / "data" / "pets").glob("train-*.webp"))
    sheet.write_bytes(sheet.read_bytes()[:-40])
    verified = espalier("data", "verify", data=tmp_path / "data")
    assert_refused(verified, "1 of 1 datasets")
    assert sheet.name in verified.stdout


def test_an_embedded_set_can_be_packed_elsewhere(tmp_path: Path) -> None:
    packed = espalier("data", "pack", "digits", "--out", tmp_path / "packs", data=tmp_path)
    assert packed.returncode == 0, packed.stderr
    assert (tmp_path / "packs" / "digits" / "pack.json").is_file()


def test_bad_pictures_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    pictures = write_class_folders(tmp_path / "pets")
    (pictures / "class1" / "3.png").write_bytes(b"")
    assert_refused(espalier("data", "pack", pictures, data=tmp_path / "data"), "3.png")
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())


def test_learners_are_listed(tmp_path: Path) -> None:
    assert "mntdp-d-plus" in espalier("learners", data=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s_pl_mini", "mntdp_d"], ["no learner 'mntdp_d'", "did you mean 'mntdp-d'"]),
        (["s_pl_mini", "mntdp-d", "--backbone", "vgg"], ["no backbone 'vgg'", "resnet"]),
        (["s_pl_mini", "mntdp-d", "--protocol", "slow"], ["no protocol 'slow'", "quick"]),
        (["s_pl_mini", "mntdp-d", "--device", "meta"], ["no device 'meta'"]),
        (["s_minus", "mntdp-d"], ["espalier data fetch"]),
        (["s_pl_mini", "mntdp-d", "--seed", "-1"], ["--seed '-1'", "0,1,2"]),
        (["s_pl_mini", "mntdp-d", "--seed", "0,two"], ["--seed '0,two'"]),
        (["s_pl_mini,s_in_mini", "mntdp-d,hatt"], ["no learner 'hatt'"]),
        (["s_pl_mini", ","], ["nothing is asked for"]),
        (["s_pl_mini", "mntdp-d", "--seed", ","], ["nothing is asked for"]),
        (["s_pl_mini,s_minus", "mntdp-d"], ["s_minus needs cifar10 mnist", "espalier data fetch"]),
    ],
)
def test_a_run_that_cannot_be_is_one_sentence(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    assert_refused(espalier("run", *arguments, "--out", tmp_path / "runs", data=tmp_path), *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.name != "posix", reason="no such signal here")
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "espalier", "run", "s_minus_mini", "independent", "--out", str(tmp_path)]

    def heard() -> None:  # a shell's background jobs are deaf to it, and so are their children
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    assert process.stderr is not None
    assert "task 1 of 6" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert "interrupted; the same command goes on" in process.communicate(timeout=60)[1]
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [[], ["data"], ["bench"]])
def test_without_arguments_there_is_help_and_no_error_message(arguments: list[str], tmp_path: Path) -> None:
    told = espalier(*arguments, data=tmp_path)
    assert "Usage" in told.stdout + told.stderr
    assert "espalier: " not in told.stderr


@pytest.mark.parametrize(("asked_for", "workers"), [(["--workers", "3"], 3), ([], 2)])
def test_of_several_streams_learners_and_seeds_every_combination_is_run_once(
    asked_for: list[str], workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Settings] = []

    def run_many(jobs: list[tuple[Settings, None]], *rest: object) -> Iterator[tuple[Settings, dict[str, Any]]]:
        assert rest[:4] == (tmp_path, None, "cpu,cuda:9", workers)
        for settings, own in reversed(jobs):
            assert own is None
            seen.append(settings)
            metrics = {"avg_accuracy": settings.seed / 10, "forgetting": 0, "lca": 0, "memory_mb": 1, "tflops": 1}
            told = {"stream": settings.stream, "learner": settings.learner, "seed": settings.seed}
            yield settings, {**told, "metrics": metrics, "seconds": 1}

    monkeypatch.setattr("espalier.cli.run.run_many", run_many)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 10)
    where = ["--device", "cpu,cuda:9", *asked_for, "--out", str(tmp_path)]
    told = CliRunner().invoke(app, ["run", "s_pl_mini,s_in_mini", "er, pnn,er", "--seed", "1,4", *where])
    assert told.exit_code == 0, told.output
    asked = {(s, name, n) for s in ("s_pl_mini", "s_in_mini") for name in ("er", "pnn") for n in (1, 4)}
    assert sorted((s.stream, s.learner, s.seed) for s in seen) == sorted(asked)
    rows = [line.split()[2:4] for line in told.output.splitlines() if line.split()[1:2] in (["er"], ["pnn"])]
    assert rows == [["1", "0.100"], ["4", "0.400"]] * 4, "seed and accuracy, in the order asked for"


def test_a_learner_is_described_whole(tmp_path: Path) -> None:
    shown = espalier("learners", "hat", data=tmp_path).stdout
    for part in ("Hard Attention to the Task", "equation 2", "for a task it tries", "it keeps", "capacity", "0.75"):
        assert part in shown
    assert "chosen on the stream" in espalier("learners", "online-ewc", data=tmp_path).stdout
    assert_refused(espalier("learners", "hatt", data=tmp_path), "no learner 'hatt'", "did you mean 'hat'")


def in_a_capture(error: Exception) -> Exception:
    """What is raised when a capture ends after an error in it."""
    found = RuntimeError("operation failed due to a previous error during capture")
    found.__context__ = error
    return found


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "make room"),
        (MemoryError(), "fewer --workers"),
        (torch.OutOfMemoryError("CUDA out of memory."), "fewer --workers"),
        (in_a_capture(torch.OutOfMemoryError("CUDA out of memory.")), "fewer --workers"),
    ],
)
def test_what_the_user_can_cure_is_not_told_as_a_bug(
    error: Exception, cure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("espalier.cli.run._one", broken)
    monkeypatch.setattr("sys.argv", ["espalier", "run", "s_pl_mini", "independent"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert cure in capsys.readouterr().err


@pytest.mark.parametrize("every", [60.0, -1.0])
def test_a_log_tells_the_tasks_of_each_run_and_how_far_it_is_now_and_then(
    every: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def done(settings: Settings, out: Path, data: Path | None, device: str, watch: Watch) -> dict[str, Any]:
        watch(Moment(0, 5))
        watch(Moment(0, 5, 30, 400, 6, 0.25))
        metrics = {"avg_accuracy": 0.5, "forgetting": 0, "lca": 0, "memory_mb": 1, "tflops": 1}
        told = {"stream": settings.stream, "learner": settings.learner, "seed": settings.seed}
        return {**told, "metrics": metrics, "seconds": 1}

    monkeypatch.setattr("espalier.cli.run.do_run", done)
    monkeypatch.setattr("espalier.cli.run.LOGGED_EVERY", every)
    told = CliRunner().invoke(app, ["run", "s_pl_mini", "er,pnn", "--out", str(tmp_path)])
    assert told.exit_code == 0, told.output
    for learner in ("er", "pnn"):
        assert f"s_pl_mini {learner}: task 1 of 5\n" in told.stderr
        later = f"s_pl_mini {learner}: task 1 of 5, 6 training, best 0.250, step 30 of 400 at most\n"
        assert (later in told.stderr) == (every < 0)


def test_where_nothing_is_validated_no_best_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("espalier.cli.run.LOGGED_EVERY", -1.0)
    with watching("s_pl_mini er") as watch:
        watch(Moment(1, 5, 30, 400, 1))
    assert capsys.readouterr().err == "s_pl_mini er: task 2 of 5, 1 training, step 30 of 400 at most\n"
