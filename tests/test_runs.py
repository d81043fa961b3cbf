"""Runs: records, results, resuming."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

from espalier import InputError
from espalier.evaluation import accuracy, pictures, predict
from espalier.learners import Learned, Lesson, MntdpD
from espalier.library import Change, Library
from espalier.nets import backbone
from espalier.runs import Settings, run
from espalier.runs.hardware import code
from espalier.runs.many import run_many
from espalier.runs.records import read_records
from espalier.streams import stream
from espalier.training import Job
from espalier.training.cost import forward_flops
from espalier.training.job import augmented
from tests.small_streams import PROTOCOL, install, settings, without_times

install()


def test_the_source_has_a_mark_that_changes_with_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.py").write_text("1")
    marks = [code(tmp_path)]
    (tmp_path / "b" / "a.py").write_text("")
    marks.append(code(tmp_path))
    (tmp_path / "a.py").write_text("2")
    marks.append(code(tmp_path))
    (tmp_path / "notes.txt").write_text("not of the source")
    assert code(tmp_path) == marks[-1]
    assert len(set(marks)) == 3


def test_a_run_leaves_what_it_promises(uninterrupted: Path) -> None:
    asked = json.loads((uninterrupted / "run.json").read_text())
    assert asked["learner"] == "mntdp-d"
    assert asked["versions"]["torch"]
    assert asked["versions"]["code"] == code()
    assert asked["data"]["digits"]["state"] == "complete"
    events = read_records(uninterrupted / "records.jsonl")
    kinds = [e["event"] for e in events]
    assert kinds.count("learned") == kinds.count("evaluated") == 4
    assert kinds.count("prior") == 3, "the first task has no past"
    candidates = [e for e in events if e["event"] == "candidate" and e["task"] == "t4"]
    assert {c["slots"] for c in candidates} == {"rrrrr", "rrrrf", "rrrff", "rrfff", "rffff", "fffff"}
    result = json.loads((uninterrupted / "result.json").read_text())
    assert {"avg_accuracy", "forgetting", "lca", "memory_mb", "tflops", "tflops_executed"} <= set(result["metrics"])
    best = max(c["val_accuracy"] for c in candidates)
    assert next(e for e in events if e["event"] == "learned" and e["task"] == "t4")["val_accuracy"] == best


def test_paper_flops_are_the_images_seen_under_the_winning_setting(uninterrupted: Path) -> None:
    """40 train images in batches of 16: every epoch of three steps sees 40 images."""
    events = read_records(uninterrupted / "records.jsonl")
    learned = next(e for e in events if e["event"] == "learned" and e["task"] == "t2")
    candidates = [e for e in events if e["event"] == "candidate" and e["task"] == "t2"]
    won = [e for e in candidates if (e["lr"], e["weight_decay"]) == (learned["lr"], learned["weight_decay"])]
    assert all(e["steps"] % 3 == 0 for e in candidates), "nobody stops within an epoch here"
    images = sum(e["steps"] // 3 * 40 for e in won)
    assert learned["paper_flops"] == images * forward_flops(backbone("tiny", (3, 8, 8), 5))
    assert learned["flops"] > learned["paper_flops"] / 2


def test_the_learning_curve_is_that_of_the_first_steps(uninterrupted: Path) -> None:
    """Before any step the kept candidate of the first task is a fresh network, known beforehand."""
    events = read_records(uninterrupted / "records.jsonl")
    curve, *others = [event["curve"] for event in events if event["event"] == "learned"]
    task, network = stream("small_mini")[0], backbone("tiny", (3, 8, 8), 5)
    fresh = Job(task, network, {}, PROTOCOL, 0, ("small_mini", 0)).fresh()
    assert [len(c) for c in (curve, *others)] == [6, 6, 6, 6]
    assert curve[0] == accuracy(task, network, fresh, 1024)
    assert any(len(set(other)) > 1 for other in others), "something is learned in five steps"


@pytest.mark.parametrize("learner", ["mntdp-d", "finetune"])
def test_killed_again_and_again_a_run_ends_with_the_same_result(learner: str, tmp_path: Path) -> None:
    """kill -9 at random moments; the same command goes on."""
    expected = run(settings(learner), tmp_path / "whole")
    folder = tmp_path / "killed" / settings(learner).folder_name
    command = [sys.executable, "-m", "tests.small_streams", learner, str(tmp_path / "killed")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    rng = random.Random(0)
    kills = 0
    while kills < 4:
        process = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + 60
        # Wait until something new is on record, then a random moment: so that kills fall into the learning.
        seen = len(read_records(folder / "records.jsonl"))
        while process.poll() is None and time.monotonic() < deadline:
            if len(read_records(folder / "records.jsonl")) > seen:
                break
            time.sleep(0.01)
        time.sleep(rng.random() * 0.3)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        Library.open(folder / "library").verify()
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert kills > 0
    result = json.loads((folder / "result.json").read_text())
    assert without_times(result) == without_times(expected)
    events = read_records(folder / "records.jsonl")
    for kind in ("learned", "evaluated"):
        assert [e["task"] for e in events if e["event"] == kind] == ["t1", "t2", "t3", "t4"]
    assert sum(e["event"] == "candidate" for e in events) == sum(
        e["event"] == "candidate" for e in read_records(tmp_path / "whole" / folder.name / "records.jsonl")
    )


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no list of child processes here")
def test_with_their_parent_all_workers_end(tmp_path: Path) -> None:
    words = ["run", "s_minus_mini", "independent,finetune", "--workers", "2", "--out", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "espalier", *words])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*/records.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    assert len(workers) >= 2
    while any(map(_runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_runs, workers))


@dataclass(frozen=True)
class Ends:
    """A learner that learns nothing."""

    kill: bool

    def learn(self, lesson: Lesson) -> Learned:
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise InputError("this one is bad")


@pytest.mark.parametrize(("kill", "message"), [(False, "this one is bad"), (True, "was killed.*what was learned is")])
def test_after_an_error_no_other_run_begins(kill: bool, message: str, tmp_path: Path) -> None:
    asked = [Settings.of("permuted_mini", name, backbone="fc-x0.02") for name in ("bad", "good", "better", "best")]
    with pytest.raises(InputError, match=message):
        list(run_many([(settings, Ends(kill)) for settings in asked], tmp_path, workers=1))
    assert [folder.name for folder in tmp_path.iterdir()] == [asked[0].folder_name]


def test_two_runs_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    asked = Settings.of("permuted_mini", "mine")
    with pytest.raises(InputError, match="share a folder"):
        list(run_many([(asked, Ends(True)), (asked, Ends(False))], tmp_path))


def test_each_worker_has_the_next_of_the_devices(tmp_path: Path) -> None:
    jobs = [(Settings.of("permuted_mini", "independent", seed, "fc-x0.02"), None) for seed in (0, 1)]
    devices = "cpu,cuda:9"
    with pytest.raises(InputError, match="no device 'cuda:9'"):
        list(run_many(jobs, tmp_path, device=devices, workers=2))
    assert len(list(tmp_path.glob("*/result.json"))) == 1, "the other one was on the CPU"
    assert len(list(run_many(jobs, tmp_path, device=devices, workers=1))) == 2, "one worker has the first device"


def _runs(process: str) -> bool:
    """Whether it is there, and not only waiting for somebody to take note of its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_finished_run_is_not_run_again(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: object, lesson: Lesson) -> Learned:
        raise AssertionError

    monkeypatch.setattr(MntdpD, "learn", never)
    before = (uninterrupted / "result.json").stat().st_mtime_ns
    assert run(settings("mntdp-d"), uninterrupted.parent)["learner"] == "mntdp-d"
    assert (uninterrupted / "result.json").stat().st_mtime_ns == before


def test_missing_data_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="espalier data fetch cifar10"):
        run(Settings.of("s_minus", "independent"), tmp_path / "runs", tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"metrics": {"avg_accuracy": "high"}}'])
def test_a_damaged_result_is_told_and_can_be_made_again(content: str, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    (folder / "result.json").write_text(content)
    with pytest.raises(InputError, match=r"result\.json"):
        run(settings("mntdp-d"), tmp_path)
    (folder / "result.json").unlink()
    assert run(settings("mntdp-d"), tmp_path) == json.loads((uninterrupted / "result.json").read_text())


@pytest.mark.parametrize("damage", ["garbage\n", '["event"]\n', "", '{"event": "evaluated", "task": "t1"}\n'])
def test_damaged_records_are_told(damage: str, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    (folder / "result.json").unlink()
    (folder / "records.jsonl").write_text(damage)
    with pytest.raises(InputError, match=r"records\.jsonl"):
        run(settings("mntdp-d"), tmp_path)
    Library.open(folder / "library").verify()


def test_what_is_not_told_of_a_task_is_missed_before_another_is_learned(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    (folder / "result.json").unlink()
    library = Library.open(folder / "library")
    with library.writer():
        known = library.tasks["t2"]
        less = {key: value for key, value in known.info.items() if key not in ("curve", "mean")}
        library.commit(Change({}, {"t2": replace(known, info=less)}))
    with pytest.raises(InputError, match="does not tell the curve, mean of t2"):
        run(settings("mntdp-d"), tmp_path)
    with pytest.raises(InputError, match="does not tell the mean of task 't2'"):
        predict(library, "t2", torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_a_library_without_its_index_is_not_begun_anew(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    (folder / "result.json").unlink()
    (folder / "library" / "library.json").unlink()
    with pytest.raises(InputError, match=r"has lost its library\.json"):
        run(settings("mntdp-d"), tmp_path)
    assert (folder / "records.jsonl").read_text() == (uninterrupted / "records.jsonl").read_text()


def test_what_was_learned_can_be_used(uninterrupted: Path) -> None:
    library = Library.open(uninterrupted / "library")
    task = stream("small_mini")[0]
    guessed = predict(library, "t1", task.test.x).argmax(1)
    result = json.loads((uninterrupted / "result.json").read_text())
    assert (guessed == task.test.y).double().mean().item() == pytest.approx(result["accuracy"][-1][0])
    with pytest.raises(InputError, match="has no task 't9'"):
        predict(library, "t9", task.test.x)
    with pytest.raises(InputError, match="takes images of shape"):
        predict(library, "t1", task.test.x[:, :, :4])
    for other in (task.test.x / 255, task.test.x.numpy()):
        with pytest.raises(InputError, match="a torch tensor of uint8"):
            predict(library, "t1", other)  # type: ignore[arg-type]


def test_picture_files_are_answered(uninterrupted: Path, tmp_path: Path) -> None:
    library = Library.open(uninterrupted / "library")
    x = stream("small_mini")[0].test.x[:3]
    files = [tmp_path / f"{index}.png" for index in range(len(x))]
    for file, image in zip(files, x, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    assert torch.equal(pictures(library, "t1", files), x)
    with pytest.raises(InputError, match="no picture"):
        pictures(library, "t1", [])
    with pytest.raises(InputError, match="cannot be opened"):
        pictures(library, "t1", [tmp_path / "gone.png"])
    assert torch.equal(pictures(library, "t1", str(files[1])), x[1:2]), "one path is one picture"


def test_many_images_are_answered_as_few_are(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library.open(uninterrupted / "library")
    images = stream("small_mini")[0].test.x
    at_once = predict(library, "t1", images)
    monkeypatch.setattr(import_module(predict.__module__), "AT_ONCE", 7)
    torch.testing.assert_close(predict(library, "t1", images), at_once)
    assert predict(library, "t1", images[:0]).shape == (0, 5)


def test_there_must_be_such_a_device(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no device 'cuda:99'"):
        run(settings("independent"), tmp_path, device="cuda:99")


def test_the_usual_backbone_and_protocol() -> None:
    assert Settings.of("s_minus", "mntdp-d") == Settings("s_minus", "mntdp-d", "resnet", "paper", 0)
    assert Settings.of("s_in_mini", "mntdp-d", 2) == Settings("s_in_mini", "mntdp-d", "tiny", "quick", 2)
    assert Settings.of("permuted_mnist", "finetune").backbone == "fc"
    assert replace(Settings.of("s_minus", "mntdp-d"), seed=3).folder_name.endswith("seed3")


def test_permuted_pixels_are_not_moved() -> None:
    """A crop would move pixels whose neighbours are elsewhere; the plain images of the same task are moved."""
    rng = torch.Generator().manual_seed(0)
    plain = stream("small_mini")[0]
    everything = torch.arange(len(plain.train))
    permuted = replace(plain, spec=replace(plain.spec, permutation=1))
    assert torch.equal(augmented(permuted, everything, PROTOCOL, rng), plain.train.x)
    assert not torch.equal(augmented(plain, everything, PROTOCOL, rng), plain.train.x)


def test_records_that_repeat_every_path_are_understood(tmp_path: Path) -> None:
    """As they were written once: all paths after each task, not only the new ones."""
    asked = settings("finetune")
    whole = run(asked, tmp_path)
    folder = tmp_path / asked.folder_name
    paths: dict[str, list[str]] = {}
    events = read_records(folder / "records.jsonl")
    for event in events:
        if event["event"] == "evaluated":
            assert set(event["paths"]) == {f"t{i + 1}" for i in range(len(event["accuracy"]))}, "finetune changes all"
            paths |= event["paths"]
            event["paths"] = dict(paths)
    assert events.pop()["event"] == "evaluated"
    (folder / "records.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "result.json").unlink()
    assert run(asked, tmp_path)["accuracy"] == whole["accuracy"]


def test_a_path_is_recorded_when_it_is_new(tmp_path: Path) -> None:
    asked = settings("independent")
    run(asked, tmp_path)
    evaluated = [e for e in read_records(tmp_path / asked.folder_name / "records.jsonl") if e["event"] == "evaluated"]
    assert [list(event["paths"]) for event in evaluated] == [["t1"], ["t2"], ["t3"], ["t4"]]
    assert [len(event["accuracy"]) for event in evaluated] == [1, 2, 3, 4]
