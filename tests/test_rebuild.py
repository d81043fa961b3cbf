"""Runs that are done again from their records, without their search."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from espalier import InputError
from espalier.cli import app
from espalier.evaluation import accuracy
from espalier.evaluation.predictor import network_of
from espalier.learners.repeat import Choice
from espalier.library import Library
from espalier.runs import Moment, run
from espalier.runs.kept import kept_among
from espalier.runs.rebuilt import choice_of, rebuild
from espalier.runs.records import Event, read_records
from espalier.streams import stream
from espalier.training import Copy, Fresh, Reuse
from tests.small_streams import PROTOCOL, install, settings

install()
PLUS = settings("mntdp-d-plus")


@pytest.fixture(scope="module")
def plus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of mntdp-d-plus without its library."""
    out = tmp_path_factory.mktemp("plus")
    run(PLUS, out)
    shutil.rmtree(out / PLUS.folder_name / "library")
    return out / PLUS.folder_name


def events_of(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_records(folder / "records.jsonl") if event["event"] == kind]


def copy_of(run: Path, folder: Path) -> Path:
    """With the records alone."""
    folder.mkdir(parents=True)
    for name in ("run.json", "records.jsonl"):
        shutil.copy(run / name, folder)
    return folder


def change(folder: Path, kind: str, task: str, **changes: Any) -> None:
    events = read_records(folder / "records.jsonl")
    for event in events:
        if event["event"] == kind and event["task"] == task:
            event.update(changes)
    (folder / "records.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def cut(folder: Path, tasks: int) -> None:
    """As if the run had been killed behind so many tasks."""
    known = [f"t{number + 1}" for number in range(tasks)]
    events = [event for event in read_records(folder / "records.jsonl") if event["task"] in known]
    (folder / "records.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_what_was_chosen_is_trained_again_and_nothing_else(plus: Path, tmp_path: Path) -> None:
    rebuilt = rebuild(plus, tmp_path)
    assert [event["path"] for event in events_of(rebuilt.folder, "learned")] == [
        event["path"] for event in events_of(plus, "learned")
    ]
    for task in ("t1", "t2", "t3", "t4"):
        (learned,) = (event for event in events_of(plus, "learned") if event["task"] == task)
        (kept,) = kept_among([e for e in events_of(plus, "candidate") if e["task"] == task], learned, 5)
        (again,) = (event for event in events_of(rebuilt.folder, "candidate") if event["task"] == task)
        assert {key: again[key] for key in ("slots", "modules", "lr", "weight_decay")} == {
            key: kept[key] for key in ("slots", "modules", "lr", "weight_decay")
        }
    refitted = [event["task"] for event in events_of(plus, "refit") if event["kept"]]
    assert refitted == [event["task"] for event in events_of(rebuilt.folder, "refit")] != []
    assert not events_of(rebuilt.folder, "prior")


def test_it_costs_what_the_search_did_and_takes_as_much_memory(plus: Path, tmp_path: Path) -> None:
    before = json.loads((plus / "result.json").read_text())
    after = rebuild(plus, tmp_path).result
    assert after is not None
    assert after["seconds"] == before["seconds"]
    for metric in ("memory_mb", "tflops", "tflops_executed"):
        assert after["metrics"][metric] == before["metrics"][metric]


def test_the_first_task_is_what_it_was_but_for_rounding(uninterrupted: Path, tmp_path: Path) -> None:
    """One step of training, after which nothing has grown yet: the learning curve begins alike. And what the library
    says is what is on record."""
    rebuilt = rebuild(uninterrupted, tmp_path)
    then, now = (events_of(folder, "learned")[0]["curve"] for folder in (uninterrupted, rebuilt.folder))
    assert now[:2] == pytest.approx(then[:2], abs=0.021)  # of 50 images, one
    library, last = Library.open(rebuilt.folder / "library"), stream("small_mini")[3]
    found = accuracy(last, network_of(library, "t4"), library.states("t4"), 1024)
    assert found == rebuilt.tasks[3].now == events_of(rebuilt.folder, "evaluated")[3]["accuracy"][3]
    assert [task.then for task in rebuilt.tasks] == [e["accuracy"][-1] for e in events_of(uninterrupted, "evaluated")]


def test_a_run_that_had_not_finished_is_rebuilt_so_far_and_gone_on_with(plus: Path, tmp_path: Path) -> None:
    half = copy_of(plus, tmp_path / "half")
    cut(half, 2)
    rebuilt = rebuild(half, tmp_path / "out")
    assert rebuilt.result is None
    assert (len(rebuilt.tasks), rebuilt.of) == (2, 4)
    assert not (rebuilt.folder / "result.json").exists()
    before = {path.name: path.read_bytes() for path in (rebuilt.folder / "library" / "modules").iterdir()}
    result = run(PLUS, tmp_path / "out")
    assert len(result["accuracy"]) == 4
    assert [len(events_of(rebuilt.folder, kind)) for kind in ("learned", "rebuilt", "prior")] == [4, 2, 2]
    assert (
        before.items()
        <= {path.name: path.read_bytes() for path in (rebuilt.folder / "library" / "modules").iterdir()}.items()
    )


def test_stopped_it_goes_on_and_ends_alike(plus: Path, tmp_path: Path) -> None:
    def stop(moment: Moment) -> None:
        if moment.task == 2 and moment.step > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(plus, tmp_path / "stopped", watch=stop)
    rebuild(plus, tmp_path / "stopped")
    rebuild(plus, tmp_path / "whole")
    left, right = (tmp_path / name / PLUS.folder_name for name in ("stopped", "whole"))
    assert json.loads((left / "result.json").read_text()) == json.loads((right / "result.json").read_text())
    for module in (right / "library" / "modules").iterdir():
        assert (left / "library" / "modules" / module.name).read_bytes() == module.read_bytes()


def test_candidates_that_records_do_not_tell_apart_are_told_by_the_refit() -> None:
    """A head as a copy or fresh, the same accuracy: 40 images in batches of 16 make 3 steps an epoch, 60 with the
    validation images 4. Older records do not tell the slots."""
    alike = {"task": "t2", "lr": 0.01, "weight_decay": 0.0, "val_accuracy": 0.7, "steps": 12}
    cost = {"paper_flops": 3, "flops": 2, "seconds": 1.5}
    told = {"classes": ["a", "b"], "mean": [0.5], "images": {"train": 40, "val": 20}, **cost}
    learned: Event = {"event": "learned", **alike, **told, "path": ["t1.stem", "t2.head"]}
    fresh: Event = {"event": "candidate", **alike, "slots": "rf", "modules": ["t1.stem", None], "best_step": 3}
    warm: Event = {"event": "candidate", **alike, "slots": "rc", "modules": ["t1.stem", "t1.head"], "best_step": 4}

    def chosen(learned: Event, refit_steps: int) -> Choice:
        refit = {"event": "refit", "task": "t2", "images": 60, "steps": refit_steps, "kept": True}
        return choice_of([fresh, warm, refit], learned, PROTOCOL)

    assert chosen(learned, 4).candidate == (Reuse("t1.stem"), Fresh())
    assert chosen(learned, 8).candidate == (Reuse("t1.stem"), Copy("t1.head"))
    assert chosen({**learned, "slots": "rc"}, 4).candidate == (Reuse("t1.stem"), Copy("t1.head")), "they are told"
    assert chosen(learned, 4).cost == cost


def test_only_what_records_tell_can_be_rebuilt(plus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run in"):
        rebuild(tmp_path / "nowhere", tmp_path)
    with pytest.raises(InputError, match="--out"):
        rebuild(plus, plus.parent)
    bare = copy_of(plus, tmp_path / "bare")
    (bare / "records.jsonl").unlink()
    with pytest.raises(InputError, match=r"no records\.jsonl"):
        rebuild(bare, tmp_path)
    (bare / "records.jsonl").touch()
    with pytest.raises(InputError, match="learned 0 tasks"):
        rebuild(bare, tmp_path)
    run_json = json.loads((bare / "run.json").read_text())
    (bare / "run.json").write_text(json.dumps({**run_json, "learner": "finetune"}))
    with pytest.raises(InputError, match="what finetune learns is not in its records"):
        rebuild(bare, tmp_path)
    (bare / "run.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(InputError, match="does not tell what was run"):
        rebuild(bare, tmp_path)


def test_other_settings_images_or_choices_are_refused(plus: Path, uninterrupted: Path, tmp_path: Path) -> None:
    other = copy_of(plus, tmp_path / "protocol")
    asked = json.loads((other / "run.json").read_text())
    asked["protocol_details"]["batch"] = 17
    (other / "run.json").write_text(json.dumps(asked))
    with pytest.raises(InputError, match="protocol_details"):
        rebuild(other, tmp_path / "out")
    images = copy_of(plus, tmp_path / "images")
    change(images, "learned", "t2", mean=[0.5, 0.5, 0.5])
    with pytest.raises(InputError, match="t2, of digits, has other images"):
        rebuild(images, tmp_path / "out")
    unknown = copy_of(plus, tmp_path / "unknown")
    change(unknown, "candidate", "t3", val_accuracy=0.123)
    with pytest.raises(InputError, match="does not tell all that was chosen"):
        rebuild(unknown, tmp_path / "new")
    path = ["t1.stem", *events_of(plus, "learned")[0]["path"][1:]]
    chosen = copy_of(plus, tmp_path / "chosen")
    change(chosen, "learned", "t1", path=["t0.stem", *path[1:]])
    with pytest.raises(InputError, match="chose otherwise"):
        rebuild(chosen, tmp_path / "out")


def test_the_command_shows_accuracies_side_by_side_and_how_to_go_on(plus: Path, tmp_path: Path) -> None:
    half = copy_of(plus, tmp_path / "half")
    cut(half, 1)
    found = CliRunner().invoke(app, ["rebuild", str(half), "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    assert "accuracy then" in found.output
    how = f"--backbone tiny --protocol test --seed 0 --device cpu --out {tmp_path / 'out'}"
    assert f"espalier run small_mini mntdp-d-plus {how}\n" in found.output
    found = CliRunner().invoke(app, ["rebuild", str(plus), "--out", str(tmp_path / "whole")])
    assert found.exit_code == 0, found.output
    memory = json.loads((tmp_path / "whole" / PLUS.folder_name / "result.json").read_text())["metrics"]["memory_mb"]
    assert f"{memory:.2f}" in found.output
