"""`espalier teach` and `espalier ask`, as they are typed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from espalier import DataFolder, ImageSet, Library, TaskSpec, as_dataset, predict, teach
from espalier.cli import app
from espalier.errors import InputError
from tests.small_streams import install

install()


def command(*arguments: str | Path) -> str:
    told = CliRunner().invoke(app, [str(each) for each in arguments])
    assert told.exit_code == 0, told.output
    return told.output


def refused(*arguments: str | Path) -> str:
    told = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(told.exception, InputError), told.output
    return str(told.exception)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two tones in `data`, packed from `tones`, and the library `known`, which has learned it."""
    place = tmp_path_factory.mktemp("taught")
    for name, shade in (("dark", 20), ("light", 200)):
        (place / "tones" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (32, 32), (shade + i, shade, shade)).save(place / "tones" / name / f"{i:02}.png")
    command("data", "pack", place / "tones", "--data", place / "data")
    shown = command(*lesson(place, "known"))
    assert shown.splitlines()[-1].split()[:5] == ["t1", "tones", "dark,", "light", "1.000"]
    return place


def lesson(place: Path, library: str, dataset: str = "tones") -> list[str | Path]:
    how: list[str | Path] = ["--data", place / "data", "--backbone", "tiny", "--protocol", "test"]
    return ["teach", place / library, dataset, *how]


def test_a_library_is_taught_and_asked(place: Path) -> None:
    picture = place / "tones" / "light" / "03.png"
    assert command("ask", place / "known").splitlines()[-1].split()[:2] == ["t1", "tones"]
    assert f"{picture}: light (" in command("ask", place / "known", "tones", picture)
    assert "tones is known already" in command("teach", place / "known", "tones", "--data", place / "data")


def test_a_folder_stands_for_the_pictures_in_it(place: Path) -> None:
    (place / "tones" / "dark" / "notes.txt").write_text("no picture")
    told = command("ask", place / "known", "t1", place / "tones" / "dark", place / "tones" / "light" / "00.png")
    files = [*sorted((place / "tones" / "dark").glob("*.png")), place / "tones" / "light" / "00.png"]
    assert [line.partition(":")[0] for line in told.splitlines()] == list(map(str, files))


def test_pictures_are_answered_together(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the order in which they were named."""
    asked: list[int] = []

    def counted(library: Library, task: str, images: torch.Tensor, device: str) -> torch.Tensor:
        asked.append(len(images))
        return predict(library, task, images, device)

    monkeypatch.setattr("espalier.cli.teach.predict", counted)
    monkeypatch.setattr("espalier.cli.teach.LOADED", 5)
    folders = [place / "tones" / name for name in ("light", "dark")]
    told = command("ask", place / "known", "t1", *folders).splitlines()
    assert asked == [5, 5, 5, 5, 4]
    files = [file for folder in folders for file in sorted(folder.glob("*.png"))]
    assert [line.partition(": ")[0] for line in told] == list(map(str, files))
    assert [line.partition(": ")[2].split()[0] for line in told] == [file.parent.name for file in files]


def test_what_is_no_picture_keeps_nobody_from_an_answer(place: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    good = place / "tones" / "light" / "03.png"
    told = CliRunner().invoke(app, ["ask", str(place / "known"), "t1", str(tmp_path / "notes.txt"), str(good)])
    assert f"{good}: light (" in told.output
    assert isinstance(told.exception, InputError)
    assert "notes.txt is damaged, or not an image" in str(told.exception)


def test_a_folder_without_pictures_keeps_nobody_from_an_answer(place: Path, tmp_path: Path) -> None:
    good = place / "tones" / "light" / "03.png"
    told = CliRunner().invoke(app, ["ask", str(place / "known"), "t1", str(tmp_path), str(good), str(good)])
    assert told.output.count(f"{good}: light (") == 2
    assert str(told.exception) == f"there is no picture in the folder {tmp_path} itself; name one that holds some."


def test_what_was_typed_wrong_is_told(place: Path, tmp_path: Path) -> None:
    known, picture = place / "known", place / "tones" / "light" / "03.png"
    assert "has no task 'tone'; it has t1 (tones)." in refused("ask", known, "tone")
    assert "the task comes before the pictures" in refused("ask", known, picture)
    assert "no picture" in refused("ask", known, "t1")
    assert "no picture" in refused("ask", known, "t1", place / "tones")
    assert "holds no library" in refused("ask", tmp_path)
    assert "no device 'cuda:9'" in refused("ask", known, "tones", picture, "--device", "cuda:9")
    assert "is inside a library" in refused("ask", known / "library")
    twice = tmp_path / "twice"
    shutil.copytree(known, twice)
    teach(twice, TaskSpec("tones", ("light", "dark"), train=4, val=None), place / "data")
    assert f"{picture}: light (" in command("ask", twice, "t2", picture)
    assert "t1, t2 are all tasks of 'tones'" in refused("ask", twice, "tones", picture)


@pytest.mark.parametrize("dataset", ["./tones", "../data/tones", "/tones", "tones/", "..", ".", ""])
def test_a_path_is_not_the_name_of_a_dataset(place: Path, dataset: str) -> None:
    assert "is a path, not the name of a dataset" in refused(*lesson(place, "new", dataset))
    assert not (place / "new").exists()


@pytest.mark.parametrize("folder", ["tones", "data", "tones/dark"])
def test_a_library_is_not_begun_among_other_things(place: Path, folder: str) -> None:
    before = sorted((place / folder).iterdir())
    assert "which is no part of a library" in refused(*lesson(place, folder))
    assert sorted((place / folder).iterdir()) == before


def test_a_lesson_that_was_stopped_at_once_leaves_nothing_learned(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        teach(place / "stopped", "tones", place / "data", watch=stop, backbone="tiny", protocol="test")
    assert "has learned nothing yet" in command("ask", place / "stopped")
    assert "t1" in command(*lesson(place, "stopped"))


def test_a_library_may_lie_where_a_system_left_something(place: Path) -> None:
    (place / "disk" / "lost+found").mkdir(parents=True)
    assert "t1" in command(*lesson(place, "disk"))


def test_names_are_no_markup(place: Path) -> None:
    data = DataFolder(place / "data")
    pixels = np.random.RandomState(0).randint(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    images = ImageSet.from_arrays(pixels, np.arange(60) % 2, class_names=["a [/x]", "[red]b"])
    data.add(as_dataset(images, "odd"))
    teach(place / "marked", "odd", data, backbone="tiny", protocol="test")
    assert "a [/x], [red]b" in command("ask", place / "marked")


def stop(moment: object) -> None:
    raise KeyboardInterrupt
