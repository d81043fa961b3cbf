"""The library when its files were changed by others: an InputError that says what to do, never a wrong module."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from espalier.errors import InputError
from espalier.files import digest
from espalier.library import Library
from tests.any_json import json_values, places
from tests.small_library import change, commit, same


def test_a_damaged_module_spoils_only_the_tasks_that_use_it(library: Library) -> None:
    commit(library, change("t1"))
    path = library.folder / library.modules["t0.stem"].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = Library.open(library.folder)
    words = f"{path.name} is damaged .*restore it from a copy; tasks that do not use module 't0.stem' are not affected"
    for read in (lambda: found.state("t0.stem"), found.verify):
        with pytest.raises(InputError, match=words):
            read()
    assert same(found.state("t1.stem"), library.state("t1.stem"))
    path.unlink()
    for read in (lambda: found.state("t0.stem"), found.verify):
        with pytest.raises(InputError, match=rf"{path.name} cannot be read \(No such file.*restore it from a copy"):
            read()


@pytest.mark.parametrize(
    "content",
    [b"", b"no tensors", save({"w": torch.ones(2, dtype=torch.float16)}), b"\x80\x04N."],
    ids=["empty", "text", "half", "pickle"],
)
def test_a_file_that_is_no_module_is_refused_even_with_a_right_checksum(library: Library, content: bytes) -> None:
    entry = library.modules["t0.stem"]
    (library.folder / "fake").write_bytes(content)
    sha256 = digest(library.folder / "fake")
    (library.folder / "fake").rename(library.folder / "modules" / f"t0.stem-{sha256[:12]}.safetensors")
    table = (library.folder / "library.json").read_text().replace(entry.sha256, sha256)
    (library.folder / "library.json").write_text(table)
    with pytest.raises(InputError, match=r"t0.stem-.* (is not a safetensors file|holds tensors of a type)"):
        Library.open(library.folder).state("t0.stem")


def edit(library: Library, change_table: Callable[[Any], None]) -> None:
    table = json.loads((library.folder / "library.json").read_text())
    change_table(table)
    (library.folder / "library.json").write_text(json.dumps(table))


EDITS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda t: t.update(version=2), "made by a newer Espalier .*upgrade"),
    (lambda t: t.update(version=0), "never was a version 0"),
    (lambda t: t.update(version="1"), "does not describe a library"),
    (lambda t: t.update(format="image-pack"), "does not describe a library"),
    (lambda t: t.update(blocks="stem"), "'blocks' is not a list"),
    (lambda t: t.update(blocks=["head", "stem"]), "at block 'head', but it is of 'stem'"),
    (lambda t: t.update(extras=[]), "'extras' is not a table"),
    (lambda t: t.update(extras={"x": "y"}), "'extras' is not a table of tables"),
    (lambda t: t.update(extras={"x": {"sha256": "../../x"}}), "checksum of extra 'x' cannot be right"),
    (lambda t: t["modules"].update({"../x": t["modules"]["t0.head"]}), "is not a name"),
    (lambda t: t["modules"]["t0.head"].update(sha256="/" * 64), "cannot be right"),
    (lambda t: t["modules"]["t0.head"].update(numbers=True), "'numbers' is not a whole number"),
    (lambda t: t["modules"]["t0.head"].update(numbers=-1), "cannot be right"),
    (lambda t: t["modules"].pop("t0.head"), "uses module 't0.head', which there is not"),
    (lambda t: t["tasks"]["t0"].update(path=[["t0.stem"], "t0.head"]), "'path' is not a list of names"),
    (lambda t: t["tasks"]["t0"].update(info=None), "'info' is not a table"),
    (lambda t: t["tasks"]["t0"]["info"].update(x=float("inf")), "holds a float that JSON cannot hold"),
]


@pytest.mark.parametrize(("change_table", "words"), EDITS, ids=[words[-30:] for _, words in EDITS])
def test_a_wrong_library_json_is_refused(library: Library, change_table: Callable[[Any], None], words: str) -> None:
    edit(library, change_table)
    for use in (lambda: Library.open(library.folder), library.reload, library.verify, lambda: commit(library)):
        with pytest.raises(InputError, match=f"library.json .*{words}"):
            use()
    assert list(library.tasks) == ["t0"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b'{"version": 1' + b"0" * 5000 + b"}"])
def test_a_library_json_that_is_no_table_is_refused(library: Library, content: bytes) -> None:
    (library.folder / "library.json").write_bytes(content)
    with pytest.raises(InputError, match=r"library.json .*restore it from a copy"):
        Library.open(library.folder)


def test_a_wrong_count_of_numbers_is_found(library: Library) -> None:
    edit(library, lambda t: t["modules"]["t0.head"].update(numbers=8))
    with pytest.raises(InputError, match=r"'t0.head' holds 7 numbers, not 8"):
        Library.open(library.folder).verify()


VALUES = json_values(st.sampled_from(["stem", "t0.head", "../x", "", "\ud800"]))


@pytest.fixture(scope="module")
def folder(original: Path) -> Path:
    return Path(shutil.copytree(original, original.parent / "fuzzed"))


@settings(derandomize=True, deadline=None, max_examples=200, database=None)
@given(st.data())
def test_any_change_of_library_json_is_read_or_refused(original: Path, folder: Path, data: st.DataObject) -> None:
    table = json.loads((original / "library.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(table)))
        if isinstance(container, dict) and data.draw(st.booleans()):
            container[data.draw(st.sampled_from(["x", "t0.head", "../x"]))] = container.pop(key, None)
        else:
            container[key] = data.draw(VALUES)
    (folder / "library.json").write_text(json.dumps(table))
    try:
        found = Library.open(folder)
        assert all(len(task.path) == len(found.blocks) for task in found.tasks.values())
        found.verify()
    except InputError as error:
        assert str(error).endswith(".")  # noqa: PT017 - both outcomes are right
