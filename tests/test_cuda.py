"""On a GPU: what makes training fast there changes results by rounding alone. Skipped where there is none."""

from dataclasses import replace

import pytest
import torch

from espalier.training import Job, Trained, train
from espalier.training.job import FAST, SLOW, Speed
from tests.nets_help import RATES, candidate, close, job, quiet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
CODES = ["aaaa.", "aaa..", ".....", ".aaaa", "aAaB."]


def on_gpu(made: Job, speed: Speed) -> Job:
    modules = {name: {key: t.cuda() for key, t in state.items()} for name, state in made.modules.items()}
    return replace(made, task=made.task.to("cuda"), modules=modules, speed=speed)


def results(made: Job, speed: Speed) -> list[Trained]:
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    there = on_gpu(made, speed)
    return train(there, [candidate(code, made.backbone) for code in CODES], RATES, quiet).results


def test_captured_steps_are_the_same_steps() -> None:
    made = job(max_epochs=6, patience=8, batch=8)
    plain, captured = results(made, SLOW), results(made, Speed(graphs=True))
    for one, other in zip(plain, captured, strict=True):
        assert (one.val_accuracy, one.best_step, one.steps) == (other.val_accuracy, other.best_step, other.steps)
        for left, right in zip(one.states, other.states, strict=True):
            assert (left is None) == (right is None)
            if left is not None and right is not None:
                close(left, right, 1e-5)
    assert len({result.steps for result in plain}) > 1, "some left before others, and the rest was captured anew"


def test_bfloat16_moves_weights_by_its_rounding_alone() -> None:
    """After one step of a small rate, the weights are nearly the same; the stored ones are float32."""
    made = job(max_epochs=1, patience=100, batch=20)
    small = tuple(replace(rate, lr=1e-4) for rate in RATES)
    there = [candidate(code, made.backbone) for code in CODES]
    exact, rounded = (train(on_gpu(made, speed), there, small, quiet).results for speed in (SLOW, FAST))
    for one, other in zip(exact, rounded, strict=True):
        for left, right in zip(one.early[1], other.early[1], strict=True):
            if left is not None and right is not None:
                assert all(t.dtype == torch.float32 for t in right.values())
                weights = [name for name in left if name.endswith("weight")]
                close({n: left[n] for n in weights}, {n: right[n] for n in weights}, 2.1e-4)


def test_the_same_seed_gives_the_same_bits_again() -> None:
    made = job(max_epochs=3, patience=100)
    for one, other in zip(results(made, FAST), results(made, FAST), strict=True):
        assert one.val_accuracy == other.val_accuracy
        for left, right in zip(one.states, other.states, strict=True):
            if left is not None and right is not None:
                assert all(torch.equal(left[name], right[name]) for name in left)
