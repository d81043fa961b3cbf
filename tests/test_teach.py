"""A library that is taught task after task, and asked: in Python, and by its two commands."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from espalier import DataFolder, Dataset, InputError, TaskSpec, pictures, predict, run, teach
from espalier.learners import MntdpD
from espalier.library import Change, Library
from espalier.report import page, read_runs
from espalier.streams import build_task
from tests.small_streams import install, noise, settings, small

install()
HOW: Any = {"backbone": "tiny", "protocol": "test"}
ONE, TWO = noise("one"), noise("second", classes=2)


def spec(dataset: Dataset) -> TaskSpec:
    return small(dataset.name, classes=dataset.class_names)


def holding(tmp_path: Path, *datasets: Dataset) -> DataFolder:
    data = DataFolder(tmp_path / "data")
    for dataset in datasets:
        data.add(dataset)
    return data


def test_a_second_task_leaves_the_answers_of_the_first(tmp_path: Path) -> None:
    data, folder = holding(tmp_path, ONE, TWO), tmp_path / "known"
    assert len(teach(folder, spec(ONE), data, **HOW)["accuracy"]) == 1
    images = build_task(spec(ONE), data, 0).test.x
    before = predict(Library.open(folder / "library"), "t1", images)
    assert len(teach(folder, spec(TWO), data)["accuracy"]) == 2
    library = Library.open(folder / "library")
    assert [entry.info["dataset"] for entry in library.tasks.values()] == ["one", "second"]
    assert torch.equal(predict(library, "t1", images), before)


def test_the_page_of_what_was_taught_tells_its_classes(tmp_path: Path) -> None:
    data, folder = holding(tmp_path, ONE, TWO), tmp_path / "what is known"
    for each in (ONE, TWO):
        teach(folder, spec(each), data, **HOW)
    (library,) = read_runs(folder)
    assert library.taught
    html = page([library], "x")
    assert "<h2>what is known</h2>" in html
    assert all(f"<td>{', '.join(each.class_names)}</td>" in html for each in (ONE, TWO))


def test_images_of_earlier_tasks_are_not_needed_again(tmp_path: Path) -> None:
    teach(tmp_path / "a", spec(ONE), holding(tmp_path, ONE), **HOW)
    apart = teach(tmp_path / "a", spec(TWO), holding(tmp_path, TWO))
    for dataset in (ONE, TWO):
        together = teach(tmp_path / "b" / "a", spec(dataset), holding(tmp_path, ONE, TWO), **HOW)
    assert apart["accuracy"] == together["accuracy"]


def test_a_task_that_is_known_is_not_learned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = holding(tmp_path, ONE), tmp_path / "known"
    first = teach(folder, spec(ONE), data, **HOW)
    monkeypatch.setattr(MntdpD, "learn", None)
    assert teach(folder, spec(ONE), data) == first


def test_a_lesson_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = holding(tmp_path, ONE, TWO), tmp_path / "known"
    teach(folder, spec(ONE), data, **HOW)

    def stopped(self: object, lesson: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MntdpD, "learn", stopped)
        with pytest.raises(KeyboardInterrupt):
            teach(folder, spec(TWO), data)
    whole = [teach(tmp_path / "whole" / "known", spec(each), data, **HOW) for each in (ONE, TWO)][-1]
    assert teach(folder, spec(TWO), data)["accuracy"] == whole["accuracy"]


def test_a_lesson_that_was_not_learned_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, data = tmp_path / "known", holding(tmp_path, ONE, TWO)

    def stopped(self: object, lesson: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MntdpD, "learn", stopped)
        for how in (HOW, {"backbone": "fc-x0.02", "protocol": "test"}):
            with pytest.raises(KeyboardInterrupt):
                teach(folder, spec(ONE), data, **how)
    teach(folder, spec(ONE), data, **HOW)
    with monkeypatch.context() as patch:
        patch.setattr(MntdpD, "learn", stopped)
        with pytest.raises(KeyboardInterrupt):
            teach(folder, spec(TWO), data)
    with pytest.raises(InputError, match="no class 'c9'"):
        teach(folder, small("second", classes=("c0", "c9")), data)
    other = noise("other", classes=2)
    result = teach(folder, spec(other), holding(tmp_path, other))
    assert len(result["accuracy"]) == 2
    assert [entry.info["dataset"] for entry in Library.open(folder / "library").tasks.values()] == ["one", "other"]


def test_a_first_lesson_killed_as_it_was_stored_is_begun_again_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = tmp_path / "known", holding(tmp_path, ONE)

    def killed(folder: Path, index: object) -> None:
        raise KeyboardInterrupt

    commit = Library.commit

    def half(library: Library, change: Change) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("espalier.library.library.write_index", killed)
            commit(library, change)

    with monkeypatch.context() as patch:
        patch.setattr(Library, "commit", half)
        with pytest.raises(KeyboardInterrupt):
            teach(folder, spec(ONE), data, **HOW)
    assert list((folder / "library" / "modules").iterdir())
    teach(folder, spec(ONE), data, backbone="fc-x0.02", protocol="test")
    assert Library.open(folder / "library").backbone == "fc-x0.02"


def test_a_library_that_another_process_has_just_begun_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = tmp_path / "known", holding(tmp_path, ONE)
    create = Library.create

    def taken(where: Path, backbone: str, blocks: list[str]) -> Library:
        made = create(where, backbone, blocks)
        (where / "library.json").unlink()
        create(where, "fc", ["dense"])  # between our looking at it and our lock
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Library, "create", taken)
        with pytest.raises(InputError, match="another process has just begun"):
            teach(folder, spec(ONE), data, **HOW)
    assert Library.open(folder / "library").backbone == "fc"


def test_a_lesson_is_not_measured_on_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "known"

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("espalier.runs.loop._Loop._evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            teach(folder, spec(ONE), holding(tmp_path, ONE), **HOW)
    with pytest.raises(InputError, match="other images of one"):
        teach(folder, spec(TWO), holding(tmp_path, noise("one", low=50), TWO))
    assert len(teach(folder, spec(TWO), holding(tmp_path, ONE, TWO))["accuracy"]) == 2


def test_other_images_of_a_known_dataset_do_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "known"
    teach(folder, spec(ONE), holding(tmp_path, ONE), **HOW)
    changed = noise("one", low=50)
    assert len(teach(folder, spec(TWO), holding(tmp_path, changed, TWO))["accuracy"]) == 2
    fewer = small("one", classes=ONE.class_names[:2])
    assert len(teach(folder, fewer, holding(tmp_path, changed))["accuracy"]) == 3


def test_the_name_of_a_dataset_is_a_task_with_images_as_the_library_has_them(tmp_path: Path) -> None:
    data, folder = holding(tmp_path, ONE, TWO), tmp_path / "known"
    teach(folder, "one", data, **HOW)
    teach(folder, "second", data)
    entries = Library.open(folder / "library").tasks.values()
    assert [entry.info["image"] for entry in entries] == [[3, 32, 32]] * 2
    teach(tmp_path / "small", spec(ONE), data, **HOW)
    teach(tmp_path / "small", "second", data)
    entries = Library.open(tmp_path / "small" / "library").tasks.values()
    assert [entry.info["image"] for entry in entries] == [[3, 8, 8]] * 2


def test_pictures_are_changed_as_the_task_changes_them(tmp_path: Path) -> None:
    grey = small("digits", background="red", permutation=3)
    data = DataFolder(tmp_path)
    teach(tmp_path / "known", grey, data, **HOW)
    plain = build_task(small("digits"), data, 0, "known", 0).test.x[:3]
    files = [tmp_path / f"{index}.png" for index in range(len(plain))]
    for file, image in zip(files, plain, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    shown = build_task(grey, data, 0, "known", 0).test.x[:3]
    assert torch.equal(pictures(Library.open(tmp_path / "known" / "library"), "t1", files), shown)


def test_what_was_begun_otherwise_is_refused(tmp_path: Path) -> None:
    data, folder = holding(tmp_path, ONE), tmp_path / "known"
    with pytest.raises(InputError, match="finetune forgets"):
        teach(folder, spec(ONE), data, learner="finetune")
    with pytest.raises(InputError, match="hat needs the images of all earlier tasks"):
        teach(folder, spec(ONE), data, learner="hat")
    with pytest.raises(InputError, match="the name of a stream"):
        teach(tmp_path / "s_minus", spec(ONE), data, **HOW)
    assert not folder.exists()
    teach(folder, spec(ONE), data, **HOW)
    with pytest.raises(InputError, match="begun with --backbone tiny"):
        teach(folder, spec(ONE), data, backbone="fc")
    run(settings("independent"), tmp_path)
    with pytest.raises(InputError, match="a run of the stream small_mini"):
        teach(tmp_path / settings("independent").folder_name, spec(ONE), data)
    with pytest.raises(InputError, match="inside a library"):
        teach(folder / "library", spec(ONE), data, **HOW)
    for damage in ('{"stream": "x"}', '{"tasks": [1]}', "{}"):
        (folder / "run.json").write_text(damage)
        with pytest.raises(InputError, match="does not tell what was taught"):
            teach(folder, spec(ONE), data)
    (folder / "run.json").unlink()
    with pytest.raises(InputError, match=r"lost its run\.json"):
        teach(folder, spec(ONE), data)


def test_a_spec_is_the_same_after_json() -> None:
    for made in (spec(ONE), TaskSpec("mnist", ("1", "2"), 5, None, background="red"), small("letters", permutation=3)):
        assert TaskSpec.of(json.loads(json.dumps(made.told()))) == made


def test_the_name_of_a_library_is_that_of_its_folder_when_it_was_begun(tmp_path: Path) -> None:
    data = holding(tmp_path, ONE, TWO)
    teach(tmp_path / "before", spec(ONE), data, **HOW)
    (tmp_path / "before").rename(tmp_path / "after")
    result = teach(tmp_path / "after", spec(TWO), data)
    assert result["stream"] == "before"
