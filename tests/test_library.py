"""The library in one process: what is stored comes back bit by bit, and nothing wrong gets in or out."""

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.errors import InputError
from espalier.files import digest
from espalier.library import Change, Library, TaskEntry
from espalier.nets import State
from tests.small_library import BLOCKS, change, commit, same, state


def bits(words: list[int]) -> torch.Tensor:
    return torch.frombuffer(bytearray(struct.pack(f"<{len(words)}I", *words)), dtype=torch.float32)


# What is stored


def test_what_is_stored_comes_back(library: Library) -> None:
    commit(library, change("t1", 2.0, stem="t0.stem"))
    found = Library.open(library.folder)
    assert (found.backbone, found.blocks, list(found.tasks)) == ("tiny", BLOCKS, ["t0", "t1"])
    assert found.tasks["t1"] == TaskEntry("t1", ("t0.stem", "t1.head"), {"classes": ["a", "b"], "mean": [0.1]})
    assert found.tasks == library.tasks
    assert found.modules == library.modules
    assert found.modules["t1.head"].block == "head"
    assert found.modules["t1.head"].numbers == 7
    assert digest(found.folder / found.modules["t1.head"].file) == found.modules["t1.head"].sha256
    assert same(found.state("t1.head"), dict(sorted(state(2.0).items())))
    assert found.state("t1.head") is found.state("t1.head")
    assert found.extras() == {}
    found.verify()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_every_kind_of_tensor_comes_back_to_the_last_bit(library: Library, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    raw = torch.randint(-(2**63), 2**63 - 1, (6, 4, 2), generator=random).view(dtype)  # NaNs of all kinds too
    wanted: State = {
        "z": raw,
        "a.0-dim": raw[0, 0, 0],
        "b": raw[:0],
        "c": raw.transpose(0, 2),
        "d": raw[1:, ::2],  # shares its memory with z
        "e": torch.randn(2, 3, 4, 4, generator=random).to(dtype).to(memory_format=torch.channels_last),
    }
    commit(library, Change({"m": ("stem", wanted)}, {}, {"x": wanted}))
    found = Library.open(library.folder)
    assert same(found.state("m"), dict(sorted(wanted.items())))
    assert same(found.extras()["x"], dict(sorted(wanted.items())))
    assert found.modules["m"].numbers == sum(tensor.numel() for tensor in wanted.values())


def test_nan_payloads_infinities_and_parameters_come_back(library: Library) -> None:
    special = bits([0x7FC00000, 0x7FC12345, 0xFFC00001, 0x7FA00001, 0x7F800000, 0xFF800000, 0x80000000, 1])
    parameter = torch.nn.Parameter(torch.ones(2))
    commit(library, Change({"m": ("stem", {"w": special, "p": parameter}), "none": ("stem", {})}, {}))
    found = Library.open(library.folder)
    assert found.state("m")["w"].numpy().tobytes() == special.numpy().tobytes()
    assert not found.state("m")["p"].requires_grad
    assert found.state("none") == {}


def test_modules_that_no_task_uses_any_more_are_not_kept_in_memory(library: Library) -> None:
    library.states("t0")
    commit(library, change("t1", stem="t0.stem"))
    commit(library, Change({}, {"t0": replace(library.tasks["t0"], path=("t0.stem", "t1.head"))}))
    assert library.modules["t0.stem"] in library._states
    assert library.modules["t0.head"] not in library._states
    assert library.state("t0.head"), "it is still on disk"


def test_what_the_caller_changes_later_is_not_stored(library: Library) -> None:
    mine = state(1.0)
    commit(library, Change({"m": ("stem", mine)}, {}))
    mine["weight"].fill_(9.0)
    assert library.state("m")["weight"].eq(1.0).all()


def test_stored_modules_are_never_touched_again(library: Library) -> None:
    def stamps() -> dict[str, tuple[int, int, str]]:
        paths = [library.folder / library.modules[name].file for name in ("t0.stem", "t0.head")]
        return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino, digest(path)) for path in paths}

    before = stamps()
    kept = library.state("t0.head")
    for number in range(1, 11):
        commit(library, change(f"t{number}", number, stem="t0.stem"))
    assert stamps() == before
    assert library.state("t0.head") is kept
    assert len(library.tasks) == 11
    library.verify()


def test_equal_modules_under_two_names_are_two_modules(library: Library) -> None:
    commit(library, Change({"x": ("stem", state(1)), "y": ("head", state(1))}, {}))
    assert library.modules["x"].sha256 == library.modules["y"].sha256
    assert library.modules["x"].file != library.modules["y"].file
    library.verify()


def test_readers_see_a_commit_when_they_reload(library: Library) -> None:
    reader = Library.open(library.folder)
    with library.writer():
        library.commit(change("t1"))
        assert list(reader.tasks) == ["t0"]
        with pytest.raises(InputError, match=r"no module 't1.head'; reload"):
            reader.state("t1.head")
        reader.reload()  # visible at once, with the lock still held
        assert list(reader.tasks) == ["t0", "t1"]
        assert same(reader.state("t1.head"), library.state("t1.head"))


def test_a_writer_starts_from_what_others_have_committed(library: Library) -> None:
    late = Library.open(library.folder)
    commit(library, change("t1"))
    commit(late, change("t2"))
    assert list(late.tasks) == list(Library.open(library.folder).tasks) == ["t0", "t1", "t2"]


def test_a_task_can_get_another_path_and_keeps_its_place(library: Library) -> None:
    commit(library, change("t1", stem="t0.stem"))
    assert library.used_numbers() == 11 + 7 + 7  # the shared stem once
    moved = replace(library.tasks["t0"], path=("t0.stem", "t1.head"))
    commit(library, Change({}, {"t0": moved}))
    found = Library.open(library.folder)
    assert list(found.tasks) == ["t0", "t1"]
    assert found.tasks["t0"] == moved
    assert found.used_numbers() == 11 + 7
    assert "t0.head" in found.modules


def test_extras_replace_the_former_ones_and_leave_no_files(library: Library) -> None:
    def files() -> list[str]:
        return sorted(path.name.split("-")[0] for path in (library.folder / "extras").iterdir())

    commit(library, Change({}, {}, {"fisher": state(1), "memory": state(2)}))
    assert files() == ["fisher", "memory"]
    reader = Library.open(library.folder)
    commit(library, change("t1"))  # None: as they are
    assert same(library.extras()["memory"], dict(sorted(state(2).items())))
    (left,) = (library.folder / "extras").glob("memory-*")
    before = left.stat().st_mtime_ns
    commit(library, Change({}, {}, {"fisher": state(1), "memory": state(2)}))  # what has not changed is not read again
    assert left.stat().st_mtime_ns == before
    commit(library, Change({}, {}, {"fisher": state(3)}))
    assert files() == ["fisher"]
    assert same(Library.open(library.folder).extras()["fisher"], dict(sorted(state(3).items())))
    with pytest.raises(InputError, match="reload the library if another process has just committed"):
        reader.extras()
    commit(library, Change({}, {}, {}))
    assert files() == []
    assert library.extras() == {}


# What is refused


def test_a_library_is_made_once(library: Library, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a library already"):
        Library.create(library.folder, "tiny", BLOCKS)
    assert list(Library.open(library.folder).tasks) == ["t0"]
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(InputError, match=r"cannot be made \(.*choose a folder"):
            Library.create(folder, "tiny", BLOCKS)
        with pytest.raises(InputError, match="there is no library in"):
            Library.open(folder)


@pytest.mark.parametrize(
    ("backbone", "blocks", "words"),
    [
        ("b", (), "needs blocks"),
        ("b", ("x", "x"), "name of its own"),
        ("b", ("../x",), "is not a name"),
        ("\ud800", ("x",), "not valid text"),
    ],
)
def test_a_bad_library_is_not_made(tmp_path: Path, backbone: str, blocks: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Library.create(tmp_path / "lib", backbone, blocks)
    assert os.listdir(tmp_path) == []


def task(*path: str, name: str = "new", info: Any = None) -> Change:
    return Change({}, {name: TaskEntry(name, path, info or {})})


endless: dict[str, Any] = {}
endless["self"] = endless

BAD_CHANGES: list[tuple[Change, str]] = [
    (Change({"t0.head": ("head", state(2))}, {}), "a module 't0.head' already, and modules never change"),
    (Change({"../m": ("head", state(2))}, {}), "is not a name"),
    (Change({"..": ("head", state(2))}, {}), "is not a name"),
    (Change({".m": ("head", state(2))}, {}), "is not a name"),
    (Change({"": ("head", state(2))}, {}), "is not a name"),
    (Change({"m" * 129: ("head", state(2))}, {}), "is not a name"),
    (Change({"m\n": ("head", state(2))}, {}), "is not a name"),
    (Change({"m": ("neck", state(2))}, {}), "block 'neck', which there is not"),
    (Change({"m": ("head", {"w": torch.ones(2, dtype=torch.float16)})}, {}), "module 'm': tensor 'w' is of type"),
    (Change({"m": ("head", {"w": torch.ones(2).to_sparse()})}, {}), "'w' is not a dense tensor"),
    (Change({"m": ("head", {"w": torch.ones(2, device="meta")})}, {}), "'w' is not a dense tensor"),
    (Change({"m": ("head", {"w": [1.0]})}, {}), "'w' is not a dense tensor"),  # type: ignore[dict-item]
    (Change({"m": ("head", {"__metadata__": torch.ones(2)})}, {}), "cannot be the name of a tensor"),
    (Change({"m": ("head", {"\ud800": torch.ones(2)})}, {}), "cannot be the name of a tensor"),
    (Change({}, {}, {"a/b": state(1)}), "is not a name"),
    (Change({}, {}, {"x": {"w": torch.ones(2).bool()}}), "extra 'x': tensor 'w' is of type"),
    (Change({}, {"other": TaskEntry("new", ("t0.stem", "t0.head"), {})}), "filed under 'other'"),
    (task("t0.stem"), "task 'new' has 1 modules for 2 blocks"),
    (task("t0.stem", "nowhere"), "uses module 'nowhere', which there is not"),
    (task("t0.head", "t0.stem"), "module 't0.head' at block 'stem', but it is of 'head'"),
    (task("t0.stem", "t0.head", name="a b"), "is not a name"),
    (task("t0.stem", "t0.head", info={"x": float("nan")}), "info of task 'new' holds a float that JSON cannot hold"),
    (task("t0.stem", "t0.head", info={"x": torch.ones(1)}), "that JSON cannot hold"),
    (task("t0.stem", "t0.head", info={"x": [{1: 2}]}), "that JSON cannot hold"),
    (task("t0.stem", "t0.head", info={"x": 10**5000}), "that JSON cannot hold"),
    (task("t0.stem", "t0.head", info={"x": "\udfff"}), "not valid text"),
    (task("t0.stem", "t0.head", info=endless), "too deep"),
]


@pytest.mark.parametrize(("bad", "words"), BAD_CHANGES, ids=[words[-30:] for _, words in BAD_CHANGES])
def test_a_bad_change_changes_nothing(library: Library, bad: Change, words: str) -> None:
    def content() -> dict[str, bytes]:
        files = [path for path in library.folder.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files if path.name != "lock"}

    before = content()
    with library.writer():
        with pytest.raises(InputError, match=words) as caught:
            library.commit(bad)
        assert str(library.folder) in str(caught.value)
        assert content() == before
        library.commit(change("t1"))
    assert list(Library.open(library.folder).tasks) == ["t0", "t1"]


def test_a_commit_needs_the_lock(library: Library) -> None:
    with pytest.raises(InputError, match=r"commit inside 'with library.writer\(\):'"):
        library.commit(change("t1"))


def test_a_second_writer_is_refused(library: Library) -> None:
    other = Library.open(library.folder)
    with library.writer(), pytest.raises(InputError, match=rf"{library.folder} .*process {os.getpid()}\)"):
        commit(other, change("t1"))
    commit(other, change("t1"))
    assert list(other.tasks) == ["t0", "t1"]


def test_the_lock_is_given_back_after_an_error(library: Library) -> None:
    with pytest.raises(KeyError), library.writer():
        raise KeyError
    with pytest.raises(InputError, match="commit inside"):
        library.commit(change("t1"))
    commit(library, change("t1"))


def test_a_file_that_is_in_the_way_is_kept_if_right_and_refused_if_wrong(library: Library, tmp_path: Path) -> None:
    twin = Library.create(tmp_path / "twin", "tiny", BLOCKS)
    commit(twin, change("t1", 5.0))
    file = twin.modules["t1.head"].file
    content = (twin.folder / file).read_bytes()
    target = library.folder / file
    target.write_bytes(content[:-1] + b"?")
    with library.writer():
        with pytest.raises(InputError, match=f"{target.name} is damaged, .*; remove it"):
            library.commit(change("t1", 5.0))
        assert list(Library.open(library.folder).tasks) == list(library.tasks) == ["t0"]
        target.write_bytes(content)
        stamp = target.stat().st_mtime_ns
        library.commit(change("t1", 5.0))
    assert target.stat().st_mtime_ns == stamp
    Library.open(library.folder).verify()


def test_a_full_disk_leaves_the_library_as_it_was(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with library.writer():
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(InputError, match=r"No space left on device.*stays as it"):
                library.commit(change("t1"))
        assert list(library.tasks) == list(Library.open(library.folder).tasks) == ["t0"]
        library.commit(change("t1"))
    library.verify()
