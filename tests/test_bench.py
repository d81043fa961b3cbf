from pathlib import Path

import pytest
import torch

from espalier import DataFolder, stream
from espalier.bench import mini, steps
from espalier.bench.streams import one_image_at_a_time, source_images, time_stream
from espalier.learners import LEARNERS
from espalier.runs import Settings


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


def test_the_mini_bench_runs_all_learners_and_what_they_are_compared_with() -> None:
    jobs = mini.jobs(1)
    assert {job.learner for job in jobs} == set(LEARNERS)
    assert all(mini.reference(job) in jobs for job in jobs)
    assert len(jobs) == len(set(jobs)) == 6 * len(LEARNERS) + 5, "five more of independent, with dense layers"
    den = Settings.of("s_in_mini", "den")
    assert mini.reference(den) == Settings("s_in_mini", "independent", "fc-x0.1", "quick")
    assert mini.reference(Settings.of("s_in_mini", "hat-wide")).backbone == "tiny"
    assert {job.learner for job in mini.jobs(2, ["er"])} == {"er", "independent"}


def test_figures_are_means_over_seeds_and_transfer_is_that_of_the_same_seed() -> None:
    def result(last: float, average: float) -> dict[str, object]:
        metrics = dict.fromkeys(("avg_accuracy", "forgetting", "last_task_accuracy", "memory_mb"), average)
        return {"accuracy": [[last]], "metrics": metrics, "seconds": 2.0}

    results = {
        Settings.of("s_in_mini", "er", 0): result(0.5, 0.25),
        Settings.of("s_in_mini", "er", 1): result(0.75, 0.75),
        Settings.of("s_in_mini", "independent", 0): result(0.25, 0.5),
        Settings.of("s_in_mini", "independent", 1): result(0.25, 0.5),
    }
    found = mini.figures(results)
    assert found["average accuracy"]["er"]["s_in_mini"] == pytest.approx((0.5, 0.125**0.5))
    assert found["transfer"]["er"]["s_in_mini"] == pytest.approx((0.375, 0.25 / 2**0.5))
    assert found["transfer"]["independent"]["s_in_mini"] == (0.0, 0.0)
    assert list(found["seconds"]) == ["independent", "er"]


@pytest.mark.parametrize("name", ["finetune", "pnn", "rcl"])
def test_step_times_are_those_of_the_same_task_early_and_late(name: str, tmp_path: Path) -> None:
    line = steps.compare(name, tmp_path, late=3)
    assert line.early_ms > 0
    assert line.late_ms > 0
