"""One task's training: everything but the candidates, and how its images become batches. Knows nothing about models."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.nets import Backbone, Mode, State
from espalier.seeds import torch_seed
from espalier.streams.task import Place, Split, Task
from espalier.streams.transforms import augment
from espalier.training.candidate import ModuleStates
from espalier.training.protocol import Protocol
from espalier.training.rules import PLAIN, Rules
from espalier.training.trie import Modes


@dataclass(frozen=True)
class Speed:
    """What a GPU is good at: half the precision in convolutions, and work that was captured beforehand. Results depend
    on it by rounding alone."""

    bf16: bool = False
    graphs: bool = False

    @staticmethod
    def of(device: torch.device) -> "Speed":
        return FAST if device.type == "cuda" else SLOW

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Where networks compute: convolutions and products in bfloat16, if that is wanted; weights stay float32."""
        return torch.autocast(device.type, torch.bfloat16) if self.bf16 else nullcontext()


SLOW, FAST = Speed(), Speed(bf16=True, graphs=True)
SHARPNESS = "sharpness of gates"  # no block has this name


@dataclass(frozen=True, eq=False)
class Job:
    """`modules` holds the states that candidates name; `rules` what the learner adds to plain training."""

    task: Task
    backbone: Backbone
    modules: ModuleStates
    protocol: Protocol
    seed: int
    place: Place
    rules: Rules = PLAIN
    speed: Speed = SLOW

    def precision(self) -> AbstractContextManager[object]:
        return self.speed.precision(self.device)

    def fresh(self) -> list[State]:
        """How fresh modules begin: the same for all candidates of the task."""
        generators = (self.generator("fresh", block.name, device="cpu") for block in self.backbone.blocks)
        states = [block.init(g) for block, g in zip(self.backbone.blocks, generators, strict=True)]
        return [{name: t.to(self.device) for name, t in state.items()} for state in states]

    def generator(self, *purpose: str | int, device: str | torch.device | None = None) -> torch.Generator:
        return torch.Generator(device or self.device).manual_seed(torch_seed(self.seed, *self.place, *purpose))

    def drawn(self, step: int, images: int) -> dict[str, Tensor]:
        """What a training step depends on besides its images: by block, which values dropout keeps; and the sharpness
        of learned gates. A mask is named by step and block: it is the same for every member, whatever else is in the
        stack, and for every copy of the block in one pass."""
        found = {}
        for block, given in zip(self.backbone.blocks, self.backbone.shapes(), strict=True):
            drops = block.drops(given)
            if drops is not None:
                share, shape = drops
                draw = self.generator("dropout", step, block.name)
                found[block.name] = torch.rand((images, *shape), device=self.device, generator=draw) >= share
        if self.rules.sharpness is not None:
            sharpness = torch.tensor(self.rules.sharpness(step, self.steps_per_epoch()))
            found[SHARPNESS] = sharpness.to(self.device, non_blocking=True)
        return found

    def modes(self, drawn: Mapping[str, Tensor]) -> Modes:
        """How blocks run at a training step for which this was drawn."""
        names = [block.name for block in self.backbone.blocks]
        return lambda depth: Mode(True, drawn.get(names[depth]), sharpness=drawn.get(SHARPNESS))

    @property
    def device(self) -> torch.device:
        return self.task.train.x.device

    def batches(self, order: torch.Generator) -> list[Tensor]:
        """The train images of one epoch in random order, cut into batches; a last one of a single image, on which
        batch norm could not train, joins the one before."""
        shuffled = torch.randperm(len(self.task.train), generator=order, device=self.device)
        batches = list(torch.split(shuffled, self.protocol.batch))
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.task.train), self.protocol.batch)


def steps_per_epoch(images: int, batch: int) -> int:
    """As many as `Job.batches` cuts."""
    whole, rest = divmod(images, batch)
    return max(1, whole + (rest > 1))


def augmented(task: Task, chosen: Tensor, protocol: Protocol, generator: torch.Generator) -> Tensor:
    """The chosen train images, cropped and mirrored at random, where the task allows it."""
    x = task.train.x[chosen]
    return x if stands_still(task) else shifted(x, protocol, generator)


def stands_still(task: Task) -> bool:
    """Whether a task's images are not augmented: permuted pixels have no neighbours to be moved with."""
    return task.spec.permutation is not None


def shifted(x: Tensor, protocol: Protocol, generator: torch.Generator) -> Tensor:
    """Images cropped and mirrored at random, as the protocol has it."""
    pad = protocol.pad * x.shape[-1] // 32
    return augment(x, generator, pad, protocol.flip) if pad or protocol.flip else x


def eval_batches(task: Task, split: Split, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in zip(torch.split(split.x, size), torch.split(split.y, size), strict=True):
        yield task.normalise(x), y
