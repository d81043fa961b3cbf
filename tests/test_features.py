"""What many past paths make of images, side by side: what each makes of them alone."""

from pathlib import Path

import pytest
import torch

from espalier.learners import features as made_by
from espalier.learners.features import features, macs_of
from espalier.nets import backbone
from tests.nets_help import lesson, modules, task

LETTERS = ("aaaaaaa", "abbbbbb", "bbbbbbb", "aaabbbb", "aaaabbb")  # one past task each, as many blocks as there are


@pytest.mark.parametrize("together", [1, 2, 16])
@pytest.mark.parametrize(("name", "size"), [("tiny", 8), ("resnet", 8), ("alexnet", 20), ("fc-x0.01", 8)])
def test_side_by_side_they_give_what_each_gives_alone(
    name: str, size: int, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = backbone(name, (3, size, size), 3)
    states = modules(net, "a", "b")
    paths = {
        f"t{number}": tuple(f"{letter}.{block.name}" for letter, block in zip(letters, net.blocks, strict=False))
        for number, letters in enumerate(LETTERS)
    }
    made = lesson(tmp_path, net, paths, states)
    images = task(size=size)
    monkeypatch.setattr(made_by, "TOGETHER", together)
    monkeypatch.setattr(made_by, "BATCH", 7)
    trunks = [path[:-1] for path in paths.values()]
    found = features(made, images, trunks, images.val)
    assert set(found) == set(trunks)
    for trunk in trunks:
        alone = net.forward([states[module] for module in trunk], images.normalise(images.val.x)).flatten(1)
        torch.testing.assert_close(found[trunk], alone, rtol=1e-4, atol=1e-4)
    assert (found[trunks[0]] - found[trunks[1]]).abs().max() > 0.01


def test_what_they_share_counts_once_where_they_are_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest layers of the first two blocks have 512 and 256 values."""
    made = lesson(tmp_path, backbone("tiny", (3, 8, 8), 3), {}, {})
    stem, stage1, stage2, stage3, _ = made.backbone.macs()
    trunks = [("a", "b", "c", "d"), ("a", "b", "c", "e"), ("a", "x", "y", "z"), ("a", "y", "y", "z")]
    once = stem + 3 * stage1 + 3 * stage2 + 4 * stage3
    for values, macs in (
        (3 * 256, once),
        (3 * 256 - 1, once + stem),  # no room for a third module of the second block beside two others
        (1, 4 * (stem + stage1 + stage2 + stage3)),
    ):
        monkeypatch.setattr("espalier.training.stacks.IN_CACHE", made_by.BATCH * values)
        assert macs_of(made, trunks) == macs
    monkeypatch.setattr("espalier.training.stacks.IN_CACHE", 1 << 30)
    monkeypatch.setattr(made_by, "TOGETHER", 2)
    assert macs_of(made, [*trunks, trunks[0]]) == once + stem
