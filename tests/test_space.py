"""The search space: the exact candidates around past paths of four blocks."""

from pathlib import Path

import pytest
import torch

from espalier.errors import InputError
from espalier.learners.lesson import Lesson
from espalier.learners.space import PIECES, Space
from espalier.nets import Backbone, Block, backbone
from espalier.training import Candidate, Copy, Fresh, Reuse
from tests.nets_help import lesson, path

NAMES = ("one", "two", "three", "head")
NET = Backbone("made", (3, 8, 8), tuple(Block(name, backbone("fc", (3, 8, 8), 3).blocks[-1].pieces) for name in NAMES))


# The head of `wide` has another width.
PATHS = {"t1": path("aaaa", NET), "t2": path("aabb", NET), "wide": path("aaaw", NET)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return lesson_after(tmp_path_factory.mktemp("past"), PATHS)


def lesson_after(folder: Path, paths: dict[str, tuple[str, ...]]) -> Lesson:
    states = {
        module: {"0.linear.bias": torch.zeros(5 if module.startswith("w") else 3)}
        for own in paths.values()
        for module in own
    }
    return lesson(folder, NET, paths, states)


def codes(candidates: list[Candidate]) -> list[str]:
    """One letter per block: a, b, w re-use that path's module, capitals copy it, and . is fresh."""
    return ["".join(letter(slot, name) for slot, name in zip(c, NAMES, strict=True)) for c in candidates]


def letter(slot: Reuse | Fresh | Copy, block: str) -> str:
    if isinstance(slot, Fresh):
        return "."
    owner, name = slot.module.split(".")
    assert name == block  # a module is only ever used at its own block
    return owner if isinstance(slot, Reuse) else owner.upper()


def found(made: Lesson, *names: str, pieces: tuple[tuple[str, int | None], ...]) -> list[str]:
    return codes(Space(pieces).candidates(made, [PATHS[name] for name in names]))


@pytest.mark.parametrize(
    ("piece", "fitting", "unfitting"),
    [
        ("suffix", ["aaaa", "aaa.", "aa..", "a...", "...."], ["aaa.", "aa..", "a...", "...."]),
        ("warm", ["aaaA", "aaAA", "aAAA", "AAAA"], ["aaA.", "aAA.", "AAA."]),
        ("prefix", [".aaa", ".aa.", "..aa", "..a.", "...a", "...."], [".aa.", "..a.", "...."]),
    ],
)
def test_a_piece_with_a_head_that_fits_and_with_one_that_does_not(
    made: Lesson, piece: str, fitting: list[str], unfitting: list[str]
) -> None:
    assert found(made, "t1", pieces=((piece, None),)) == fitting
    assert found(made, "wide", pieces=((piece, None),)) == unfitting
    assert found(made, "t1", pieces=((piece, 4),)) == found(made, "t1", pieces=((piece, 9),)) == fitting
    assert codes(PIECES[piece](PATHS["t1"], True, 4)) == fitting


@pytest.mark.parametrize(
    ("piece", "depth", "fitting", "unfitting"),
    [
        ("suffix", 1, ["aaaa", "aaa."], ["aaa."]),
        ("suffix", 3, ["aaaa", "aaa.", "aa..", "a..."], ["aaa.", "aa..", "a..."]),
        ("warm", 2, ["aaaA", "aaAA"], ["aaA."]),
        ("warm", 3, ["aaaA", "aaAA", "aAAA"], ["aaA.", "aAA."]),
        ("prefix", 1, [".aaa", ".aa."], [".aa."]),
        ("prefix", 2, [".aaa", ".aa.", "..aa", "..a."], [".aa.", "..a."]),
    ],
)
def test_a_depth_limits_how_many_blocks_are_new(
    made: Lesson, piece: str, depth: int, fitting: list[str], unfitting: list[str]
) -> None:
    assert found(made, "t1", pieces=((piece, depth),)) == fitting
    assert found(made, "wide", pieces=((piece, depth),)) == unfitting


def test_two_paths_give_no_candidate_twice(made: Lesson) -> None:
    assert found(made, "t2", "t1", pieces=(("suffix", None),)) == [
        "aabb", "aab.", "aa..", "a...", "....", "aaaa", "aaa.",
    ]  # fmt: skip
    assert found(made, "t1", "wide", pieces=(("suffix", None),)) == ["aaaa", "aaa.", "aa..", "a...", "...."]
    assert found(made, "t1", "t1", pieces=(("warm", None),)) == ["aaaA", "aaAA", "aAAA", "AAAA"]


def test_a_union_keeps_the_order_of_its_pieces_and_gives_nothing_twice(made: Lesson) -> None:
    assert found(made, "t1", pieces=(("suffix", None), ("prefix", None), ("warm", 2))) == [
        "aaaa", "aaa.", "aa..", "a...", "....",
        ".aaa", ".aa.", "..aa", "..a.", "...a",
        "aaaA", "aaAA",
    ]  # fmt: skip
    assert Space() == Space((("suffix", None),))


@pytest.mark.parametrize("piece", list(PIECES))
def test_a_task_without_a_past_is_all_new(made: Lesson, piece: str) -> None:
    assert found(made, pieces=((piece, None),)) == ["...."]


@pytest.mark.parametrize(
    ("pieces", "words"), [((("sufix", None),), "no piece 'sufix'"), ((("suffix", 0),), "0 blocks deep")]
)
def test_a_space_that_cannot_be_is_refused(pieces: tuple[tuple[str, int | None], ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Space(pieces)


def test_a_space_that_is_empty_around_a_path_falls_back_to_all_new(made: Lesson) -> None:
    assert found(made, "wide", pieces=(("warm", 1),)) == ["...."]
