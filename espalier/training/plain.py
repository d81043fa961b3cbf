"""The plain trainer: one member after another, the whole network at every step, torch's own Adam.

It computes what `train` computes, without its tricks: the reference for tests and benchmarks.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import EVAL, Mode, State, is_buffer
from espalier.training.candidate import Candidate, Copy, Fresh, Member, Reuse, Setting, Slot, Trained
from espalier.training.job import Job, augmented, eval_batches
from espalier.training.train import CURVE, evaluate_frozen
from espalier.training.trie import Modes, evaluating


def train_one_by_one(job: Job, candidates: Sequence[Candidate], settings: Sequence[Setting]) -> list[Trained]:
    results = []
    for candidate in candidates:
        for setting in settings:
            member = Member(candidate, setting)
            if member.trains:
                results.append(_train_member(job, member))
            else:
                results.append(evaluate_frozen(job, member))
                break
    return results


def _train_member(job: Job, member: Member) -> Trained:
    protocol, task = job.protocol, job.task
    network = _initial_network(job, member)
    frozen = [isinstance(slot, Reuse) for slot in member.candidate]
    parameters = [t for state in network for t in state.values() if t.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=member.setting.lr, weight_decay=member.setting.weight_decay)
    order, crops = job.generator("batches"), job.generator("augment")

    best_accuracy, best_step, best_states = -1.0, 0, _copy(network, frozen)
    early = [_copy(network, frozen)]
    step = samples = 0

    def evaluate() -> bool:
        """Keep the state if it is the best so far; whether to stop."""
        nonlocal best_accuracy, best_step, best_states
        accuracy = _accuracy(job, member, network)
        if accuracy > best_accuracy:
            best_accuracy, best_step, best_states = accuracy, step, _copy(network, frozen)
        return step - best_step >= protocol.patience

    def result() -> Trained:
        curve = tuple(early[min(at, len(early) - 1)] for at in range(CURVE + 1))
        return Trained(member, best_accuracy, best_step, step, samples, best_states, curve)

    evaluate()
    for _ in range(protocol.max_epochs):
        batches = job.batches(order)
        for chosen in batches:
            x = task.normalise(augmented(task, chosen, protocol, crops))
            logits = _forward(job, member, network, x, job.modes(job.drawn(step, len(x))))
            loss = F.cross_entropy(logits, task.train.y[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step += 1
            samples += len(x)
            if step <= CURVE:
                early.append(_copy(network, frozen))
            if (step in protocol.early or chosen is batches[-1]) and evaluate():
                return result()
    return result()


def _initial_network(job: Job, member: Member) -> list[State]:
    """The tensors of every block with a leading axis of one member; trained parameters require a gradient."""
    network = []
    for slot, fresh in zip(member.candidate, job.fresh(), strict=True):
        source = fresh if isinstance(slot, Fresh) else job.modules[slot.module]
        trained = isinstance(slot, Fresh | Copy)
        network.append({n: t[None].clone().requires_grad_(trained and not is_buffer(n)) for n, t in source.items()})
    return network


def _forward(job: Job, member: Member, network: list[State], x: Tensor, modes: Modes) -> Tensor:
    for depth, (block, state) in enumerate(zip(job.backbone.blocks, network, strict=True)):
        x = block.forward(state, x, _mode(member.candidate[depth], modes(depth)))
    return x


def _mode(slot: Slot, mode: Mode) -> Mode:
    if isinstance(slot, Reuse):
        return EVAL
    return replace(mode, frozen_norms=isinstance(slot, Copy) and slot.keep_statistics)


@torch.no_grad()
def _accuracy(job: Job, member: Member, network: list[State]) -> float:
    correct = 0
    for x, y in eval_batches(job.task, job.task.val, job.protocol.eval_batch):
        correct += int((_forward(job, member, network, x, evaluating).argmax(1) == y).sum())
    return correct / len(job.task.val)


def _copy(network: list[State], frozen: list[bool]) -> tuple[State | None, ...]:
    return tuple(
        None if is_frozen else {name: tensor[0].detach().clone() for name, tensor in state.items()}
        for state, is_frozen in zip(network, frozen, strict=True)
    )
