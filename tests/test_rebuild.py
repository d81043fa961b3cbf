"""Runs that are done again from their records, without their search."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from espalier import InputError, MissingDataError
from espalier.cli import app
from espalier.evaluation import accuracy
from espalier.evaluation.predictor import network_of
from espalier.learners.repeat import Choice
from espalier.library import Library
from espalier.report import page, read_runs
from espalier.runs import Moment, run
from espalier.runs.chosen import chosen_in
from espalier.runs.kept import kept_among
from espalier.runs.rebuilt import rebuild
from espalier.runs.records import Event, read_records
from espalier.streams import stream
from espalier.training import Copy, Fresh, Reuse
from tests.small_streams import PROTOCOL, install, settings

install()
PLUS = settings("mntdp-d-plus")
RESULTS = Path(__file__).parent.parent / "results"


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
    assert [task.now for task in rebuilt.tasks] == pytest.approx([task.then for task in rebuilt.tasks], abs=0.25)
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
    assert rebuild(half, tmp_path / "out").result == result, "there is nothing left to do"
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


def told(task: str = "t2", path: tuple[str, ...] = ("t1.stem", "t2.head")) -> Event:
    """40 images in batches of 16 make 3 steps an epoch, 60 with the validation images 4."""
    alike = {"task": task, "lr": 0.01, "weight_decay": 0.0, "val_accuracy": 0.7, "steps": 12, "path": list(path)}
    cost = {"paper_flops": 3, "flops": 2, "seconds": 1.5}
    return {"event": "learned", **alike, "classes": ["a"], "mean": [0.5], "images": {"train": 40, "val": 20}, **cost}


def tried(learned: Event, slots: str, modules: list[str | None], best_step: int = 3) -> Event:
    alike = {key: learned[key] for key in ("task", "lr", "weight_decay", "val_accuracy", "steps")}
    return {"event": "candidate", **alike, "slots": slots, "modules": modules, "best_step": best_step}


def test_candidates_that_records_do_not_tell_apart_are_told_by_the_refit() -> None:
    """A head as a copy or fresh, the same accuracy. Older records do not tell the slots."""
    learned = told()
    fresh, warm = tried(learned, "rf", ["t1.stem", None]), tried(learned, "rc", ["t1.stem", "t1.head"], best_step=4)

    def chosen(learned: Event, refit_steps: int) -> Choice:
        refit = {"event": "refit", "task": "t2", "images": 60, "steps": refit_steps, "kept": True}
        return chosen_in([fresh, warm, refit, learned], PROTOCOL.batch)["t2"]

    assert chosen(learned, 4).candidate == (Reuse("t1.stem"), Fresh())
    assert chosen(learned, 8).candidate == (Reuse("t1.stem"), Copy("t1.head"))
    assert chosen({**learned, "slots": "rc"}, 4).candidate == (Reuse("t1.stem"), Copy("t1.head")), "they are told"
    assert chosen(learned, 4).cost == {"paper_flops": 3, "flops": 2, "seconds": 1.5}
    assert chosen(learned, 4).path == ("t1.stem", "t2.head")


def test_a_fresh_block_is_none_where_the_path_has_an_old_one() -> None:
    learned = told("t3", ("t1.stem", "t2.body", "t3.head"))
    other, kept = tried(learned, "rff", ["t1.stem", None, None]), tried(learned, "rrf", ["t1.stem", "t2.body", None])
    assert kept_among([other, kept], learned, 3) == [kept]


def test_only_what_records_tell_can_be_rebuilt(plus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run in"):
        rebuild(tmp_path / "nowhere", tmp_path)
    with pytest.raises(InputError, match="itself would be written to"):
        rebuild(plus, plus.parent)
    bare = copy_of(plus, tmp_path / "bare")
    (bare / "records.jsonl").unlink()
    with pytest.raises(InputError, match=r"no records\.jsonl"):
        rebuild(bare, tmp_path)
    (bare / "records.jsonl").touch()
    with pytest.raises(InputError, match="does not tell of a first task"):
        rebuild(bare, tmp_path)
    for changed, message in (
        ({"learner": "finetune"}, "what finetune learns is not in its records"),
        ({"stream": "my_library"}, "no stream that is known here"),
        ({"learner": "mntdp-d-k2"}, "no learner that is known here"),
        ({"learner": None}, "does not tell what was run"),
        ({"seed": True}, "does not tell what was run"),
        ({"backbone": ["tiny"]}, "does not tell what was run"),
    ):
        run_json = json.loads((plus / "run.json").read_text())
        (bare / "run.json").write_text(json.dumps({**run_json, **changed}))
        with pytest.raises(InputError, match=message):
            rebuild(bare, tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("candidate", {"val_accuracy": 0.123}),
        ("learned", {"mean": "abc"}),
        ("learned", {"flops": None}),
        ("learned", {"seconds": "x"}),
        ("learned", {"images": 3}),
        ("evaluated", {"accuracy": []}),
        ("evaluated", {"accuracy": ["x"]}),
    ],
)
def test_damaged_records_are_told_before_anything_is_learned(
    kind: str, changes: dict[str, Any], plus: Path, tmp_path: Path
) -> None:
    damaged = copy_of(plus, tmp_path / "damaged")
    change(damaged, kind, "t3", **changes)
    with pytest.raises(InputError, match="does not tell all that was chosen"):
        rebuild(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_task_that_is_missing_among_the_records_is_told(plus: Path, tmp_path: Path) -> None:
    damaged = copy_of(plus, tmp_path / "damaged")
    events = [event for event in read_records(damaged / "records.jsonl") if event["task"] != "t2"]
    (damaged / "records.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(InputError, match="does not tell of a first task and those behind it"):
        rebuild(damaged, tmp_path / "out")


def test_other_settings_and_images_are_refused(plus: Path, tmp_path: Path) -> None:
    def changed(name: str, **changes: Any) -> Path:
        folder = copy_of(plus, tmp_path / name)
        asked = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**asked, **changes}))
        return folder

    details = json.loads((plus / "run.json").read_text())["protocol_details"]
    for folder, what in (
        (changed("protocol", protocol_details={**details, "batch": 17}), "protocol_details"),
        (changed("learner", learner_details="Finetune()"), "learner_details"),
        (changed("number", learner_details=3), "learner_details"),
        (changed("tasks", tasks="none"), "tasks"),
    ):
        with pytest.raises(InputError, match=what):
            rebuild(folder, tmp_path / "out")
    classes = copy_of(plus, tmp_path / "classes")
    change(classes, "learned", "t2", classes=["x", "y"])
    with pytest.raises(InputError, match="classes of t2, of digits, are drawn otherwise"):
        rebuild(classes, tmp_path / "out")
    for name, changes in (("mean", {"mean": [0.5] * 3}), ("shape", {"mean": [0.5]}), ("sizes", {"images": {"val": 3}})):
        images = copy_of(plus, tmp_path / name)
        change(images, "learned", "t1", **({"images": {"train": 300, "val": 3}} if name == "sizes" else changes))
        with pytest.raises(InputError, match="t1, of letters, has other images"):
            rebuild(images, tmp_path / f"out {name}")


def test_a_place_that_holds_something_else_is_refused(plus: Path, tmp_path: Path) -> None:
    there = copy_of(plus, tmp_path / "there" / PLUS.folder_name)
    before = (there / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match="holds records without their library"):
        rebuild(plus, there.parent)
    shutil.copy(plus / "result.json", there)
    (there / "records.jsonl").unlink()
    with pytest.raises(InputError, match="holds records without their library"):
        rebuild(plus, there.parent)
    (there / "records.jsonl").write_bytes(before)
    rebuild(plus, tmp_path / "out")
    other = copy_of(plus, tmp_path / "other")
    change(other, "learned", "t1", flops=7)
    with pytest.raises(InputError, match="holds another run"):
        rebuild(other, tmp_path / "out")


def test_the_run_itself_is_no_rebuilding(plus: Path, tmp_path: Path) -> None:
    """Its paths and costs are those on record, but nothing in it was done again."""
    run(PLUS, tmp_path / "out")
    records = copy_of(tmp_path / "out" / PLUS.folder_name, tmp_path / "records")
    with pytest.raises(InputError, match="is no rebuilding"):
        rebuild(records, tmp_path / "out")


def test_images_that_are_missing_are_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="s_pl needs mnist"):
        rebuild(RESULTS / "s_pl--mntdp-d--resnet--paper--seed0", tmp_path / "out", tmp_path)


def test_a_run_that_was_killed_before_it_measured_its_last_task(plus: Path, tmp_path: Path) -> None:
    half = copy_of(plus, tmp_path / "half")
    cut(half, 2)
    lines = (half / "records.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["event"] == "evaluated"
    (half / "records.jsonl").write_text("".join(lines[:-1]))
    rebuilt = rebuild(half, tmp_path / "out")
    assert [(task.task, task.then is None) for task in rebuilt.tasks] == [("t1", False), ("t2", True)]
    found = CliRunner().invoke(app, ["rebuild", str(half), "--out", str(tmp_path / "out")])
    assert "had learned 2 of 4 tasks" in found.output


def test_the_command_shows_accuracies_side_by_side_and_how_to_go_on(plus: Path, tmp_path: Path) -> None:
    half, out = copy_of(plus, tmp_path / "half"), tmp_path / "out of it"
    cut(half, 1)
    found = CliRunner().invoke(app, ["rebuild", str(half), "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "accuracy then" in found.output
    how = f"--backbone tiny --protocol test --seed 0 --device cpu --out '{out}'"
    assert f"espalier run small_mini mntdp-d-plus {how}\n" in found.output
    found = CliRunner().invoke(app, ["rebuild", str(plus), "--out", str(tmp_path / "whole")])
    assert found.exit_code == 0, found.output
    memory = json.loads((tmp_path / "whole" / PLUS.folder_name / "result.json").read_text())["metrics"]["memory_mb"]
    assert f"{memory:.2f}" in found.output


def test_tables_and_pages_tell_where_the_search_ran(plus: Path, tmp_path: Path) -> None:
    asked = json.loads((plus / "run.json").read_text())
    source = copy_of(plus, tmp_path / "source")
    (source / "run.json").write_text(json.dumps({**asked, "hardware": {"gpu": "NVIDIA X"}}))
    rebuild(source, tmp_path / "out")
    found = CliRunner().invoke(app, ["table", str(tmp_path / "out"), "--format", "markdown"])
    assert "rebuilt from a run on NVIDIA X" in found.output
    found = CliRunner().invoke(app, ["page", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")])
    assert found.exit_code == 0, found.output
    assert "a run on gpu NVIDIA X</dd>" in (tmp_path / "page.html").read_text()


def test_it_is_called_rebuilt_wherever_it_is_shown(plus: Path, tmp_path: Path) -> None:
    rebuild(plus, tmp_path)
    asked = ["small_mini", "mntdp-d-plus", "--backbone", "tiny", "--protocol", "test", "--out"]
    words = "TFLOPs and seconds are those of the search"
    for out, shown in ((tmp_path, True), (plus.parent, False)):
        found = CliRunner().invoke(app, ["run", *asked, str(out)])
        assert found.exit_code == 0, found.output
        assert [words in found.output, "mntdp-d-plus (rebuilt)" in found.output] == [shown, shown]
    (again,) = read_runs(tmp_path)
    html = " ".join(page([again], "x").split())
    assert "mntdp-d-plus (rebuilt)</a>" in html, "in the summary"
    assert "<h2>mntdp-d-plus (rebuilt) <" in html
    assert html.count("TFLOPs and seconds are those of its search.") == 2
    first = {key: value for key, value in again.settings.items() if key != "rebuilt_from"}
    assert "rebuilt" not in page([replace(again, settings=first)], "x").lower()
