"""What a run folder was begun with, and when it is gone on with."""

import json
import os
import shutil
from pathlib import Path

import pytest

from espalier import DataFolder, InputError
from espalier.learners import Learned, Lesson, MntdpD, Prior
from espalier.learners.finetune import Finetune
from espalier.library import Library
from espalier.runs import Moment, run
from espalier.streams import TaskSpec
from espalier.streams.registry import STREAMS
from tests.small_streams import install, noise, settings

install()


def test_a_finished_run_of_another_learner_is_not_taken_for_this_one(tmp_path: Path) -> None:
    run(settings("mine"), tmp_path, own_learner=Finetune())
    with pytest.raises(InputError, match=r"begun with other settings \(learner_details"):
        run(settings("mine"), tmp_path, own_learner=MntdpD(Prior("random")))


def test_the_name_of_a_known_learner_is_not_given_to_another(uninterrupted: Path, tmp_path: Path) -> None:
    for own in (Finetune(), MntdpD(refit=True)):
        with pytest.raises(InputError, match=r"'mntdp-d' names MntdpD\(\), not .*; give your learner another name"):
            run(settings("mntdp-d"), tmp_path, own_learner=own)
    assert not list(tmp_path.iterdir())
    assert run(settings("mntdp-d"), uninterrupted.parent, own_learner=MntdpD())["learner"] == "mntdp-d"


def test_a_run_begun_with_other_settings_is_refused(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "stream": "another"}))
    with pytest.raises(InputError, match=r"begun with other settings \(stream, learner"):
        run(settings("mntdp-d"), tmp_path)
    (folder / "run.json").unlink()
    with pytest.raises(InputError, match=r"lost its run\.json"):
        run(settings("mntdp-d"), tmp_path)


def test_a_folder_in_which_nothing_was_learned_is_as_good_as_new(tmp_path: Path) -> None:
    folder = tmp_path / settings("independent").folder_name
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"schema": 1, "stream": "another"}))
    Library.create(folder / "library", "fc", ["dense"])
    run(settings("independent"), tmp_path)
    assert json.loads((folder / "run.json").read_text())["stream"] == "small_mini"
    assert Library.open(folder / "library").backbone == "tiny"


def test_a_value_that_another_version_does_not_know_does_not_end_a_run(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    begun = json.loads((folder / "run.json").read_text())
    begun["protocol_details"] = {k: v for k, v in begun["protocol_details"].items() if k != "flip"} | {"later": 1}
    (folder / "run.json").write_text(json.dumps(begun))
    assert run(settings("mntdp-d"), tmp_path)["learner"] == "mntdp-d"
    begun["protocol_details"]["batch"] += 1
    (folder / "run.json").write_text(json.dumps(begun))
    with pytest.raises(InputError, match=r"other settings \(protocol_details"):
        run(settings("mntdp-d"), tmp_path)


@pytest.mark.parametrize("content", ["[]", "7", "null"])
def test_a_run_json_that_says_nothing_is_refused(content: str, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / uninterrupted.name
    shutil.copytree(uninterrupted, folder)
    (folder / "run.json").write_text(content)
    with pytest.raises(InputError, match="not a table of values"):
        run(settings("mntdp-d"), tmp_path)


def test_a_run_does_not_go_on_with_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TaskSpec("mine", ("c0", "c1"), 10, 4, 4, size=8)
    monkeypatch.setitem(STREAMS, "mine_mini", (lambda name, seed, data: [spec, spec], "two tasks"))
    asked = settings("finetune", stream="mine_mini")
    right, wrong = DataFolder(tmp_path / "data"), DataFolder(tmp_path / "data")
    right.add(noise("mine"))
    wrong.add(noise("mine", low=50))

    def stop(moment: Moment) -> None:
        if moment.task == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked, tmp_path, right, watch=stop)
    with pytest.raises(InputError, match="begun with other images of mine"):
        run(asked, tmp_path, wrong)
    assert len(run(asked, tmp_path, right)["accuracy"]) == 2


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    class Second:
        def __repr__(self) -> str:
            return "Second()"

        def learn(self, lesson: Lesson) -> Learned:
            run(settings("mine"), tmp_path, own_learner=self)
            raise AssertionError

    with pytest.raises(InputError, match=str(os.getpid())):
        run(settings("mine"), tmp_path, own_learner=Second())
