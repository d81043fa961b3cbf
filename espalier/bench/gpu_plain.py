"""One member trained as anyone would in PyTorch: modules, torch's Adam, eager, float32. What the trie is compared with.

`training/plain.py` is not used for that: on a GPU its convolutions are those of the trie, made for stacks, with weights
reordered and gradients computed in Python at every step; that is not what others run. This loop is torch alone, and
rather kinder than a usual one: the images are on the device and augmented there in batches, the val images are prepared
once, and nothing waits for the device but one number at the end of an epoch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from espalier.nets import Block
from espalier.nets.pieces import ConvPool, Dense, GlobalPool, Piece, Residual, Stem
from espalier.training import Copy, Fresh, Job, Member, Reuse
from espalier.training.job import augmented, eval_batches


class PlainTraining:
    def __init__(self, job: Job, member: Member) -> None:
        self.job = job
        self.frozen = [isinstance(slot, Reuse) for slot in member.candidate]
        self.network = network(job, member)
        trained = [p for p in self.network.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(trained, lr=member.setting.lr, weight_decay=member.setting.weight_decay)
        self.val = list(eval_batches(job.task, job.task.val, job.protocol.eval_batch))
        self.order, self.crops = job.generator("batches"), job.generator("augment")
        self.best_accuracy, self.best = -1.0, self._copy()
        self._training()

    def epoch(self) -> None:
        """All train images in batches, then the val images."""
        self._training()
        for chosen in self.job.batches(self.order):
            self.step(chosen)
        accuracy = self.accuracy()
        if accuracy > self.best_accuracy:
            self.best_accuracy, self.best = accuracy, self._copy()

    def _training(self) -> None:
        for block, frozen in zip(self.network, self.frozen, strict=True):
            block.train(not frozen)

    def step(self, chosen: Tensor) -> None:
        task = self.job.task
        x = task.normalise(augmented(task, chosen, self.job.protocol, self.crops))
        loss = F.cross_entropy(self.network(x), task.train.y[chosen])
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        self.network.eval()
        correct = torch.zeros((), dtype=torch.long, device=self.job.device)
        for x, y in self.val:
            correct += (self.network(x).argmax(1) == y).sum()
        return correct.item() / len(self.job.task.val)

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.network.state_dict().items()}


def network(job: Job, member: Member) -> nn.Sequential:
    """The member's network as it begins, one module per block."""
    blocks = []
    for block, slot, fresh in zip(job.backbone.blocks, member.candidate, job.fresh(), strict=True):
        made = module(block).to(job.device)
        # Not strict: torch also counts the batches that a norm has seen.
        made.load_state_dict(fresh if isinstance(slot, Fresh) else job.modules[slot.module], strict=False)
        blocks.append(made.requires_grad_(isinstance(slot, Fresh | Copy)))
    return nn.Sequential(*blocks)


def module(block: Block) -> nn.Sequential:
    """Its tensors have the names that they have in the block's states."""
    return nn.Sequential(*(_module(piece) for piece in block.pieces))


def _module(piece: Piece) -> nn.Module:
    match piece:
        case Stem():
            return _Stem(piece)
        case Residual():
            return _Residual(piece)
        case GlobalPool():
            return _GlobalPool()
        case ConvPool():
            return _ConvPool(piece)
        case Dense():
            return _Dense(piece)
    raise TypeError(f"no module for {piece}")


class _Stem(nn.Module):
    def __init__(self, piece: Stem) -> None:
        super().__init__()
        self.conv = nn.Conv2d(piece.inputs, piece.outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(piece.outputs)

    def forward(self, x: Tensor) -> Any:
        return F.relu_(self.norm(self.conv(x)))


class _Residual(nn.Module):
    def __init__(self, piece: Residual) -> None:
        super().__init__()
        inputs, outputs, stride = piece.inputs, piece.outputs, piece.stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.projects = stride != 1 or inputs != outputs
        if self.projects:
            self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.short_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Any:
        out = F.relu_(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu_(out + (self.short_norm(self.short(x)) if self.projects else x))


class _GlobalPool(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.mean((2, 3))


class _ConvPool(nn.Module):
    def __init__(self, piece: ConvPool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(piece.inputs, piece.outputs, piece.kernel)
        self.drop = nn.Dropout(piece.drop)

    def forward(self, x: Tensor) -> Any:
        return F.max_pool2d(self.drop(F.relu_(self.conv(x))), 2)


class _Dense(nn.Module):
    def __init__(self, piece: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(piece.inputs, piece.outputs)
        self.relu, self.drop = piece.relu, nn.Dropout(piece.drop)

    def forward(self, x: Tensor) -> Any:
        out = self.linear(x.flatten(1))
        return self.drop(F.relu_(out) if self.relu else out)
