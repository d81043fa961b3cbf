from pathlib import Path

import torch

from espalier import DataFolder, stream
from espalier.bench.streams import one_image_at_a_time, source_images, time_stream


def test_both_pipelines_make_the_same_tasks(real_data: DataFolder) -> None:
    """The comparison is fair: the same images and labels come out, to one grey level where they are scaled."""
    for name, index in (("s_minus", 2), ("s_in", 5), ("s_in_mini", 1)):
        chosen = stream(name, 0, real_data)
        dataset = real_data.load(chosen.specs[index].dataset)
        images = source_images(dataset)
        task = chosen[index]
        plain = list(one_image_at_a_time(chosen, index, images))
        for split, (x, y) in zip((task.train, task.val, task.test), plain, strict=True):
            assert torch.equal(split.y, y)
            assert (split.x.int() - x.int()).abs().max() <= 1


def test_timing_counts_images(tmp_path: Path) -> None:
    timing = time_stream(stream("s_in_mini", 0, tmp_path), tasks=2)
    assert timing.tasks == 2
    assert timing.batched > 0
    assert timing.one_by_one > 0
    assert timing.images == (600 + 300 + 1000) + (50 + 30 + 1000)
