"""What a learner is given, and what it gives back. Knows nothing about which learner it is.

A lesson holds one task's train and val images (never its test images, never a later task), the library so far, and
the trainer. A learner says which candidates it allows; `keep_best` trains them and turns the best into a change of
the library, which the run loop commits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from espalier.errors import InputError
from espalier.library import Change, Library, TaskEntry
from espalier.nets import BIAS, Backbone, Network, State
from espalier.nets.pieces import Dense
from espalier.streams.task import Task
from espalier.training import (
    Candidate,
    Copy,
    Fresh,
    Job,
    Model,
    Outcome,
    Reuse,
    Rules,
    Setting,
    Slot,
    Trained,
    best,
    describe,
    fit,
    train,
)
from espalier.training import Protocol as TrainingProtocol
from espalier.training.candidate import modules_named
from espalier.training.cost import forward_flops
from espalier.training.job import Speed
from espalier.training.rules import PLAIN
from espalier.training.train import Progress

Path = tuple[str, ...]
Record = Callable[[str, dict[str, Any]], None]  # (event, what happened)


@dataclass(frozen=True, eq=False)
class Lesson:
    name: str  # of the task, "t1" and so on; its new modules are named after it
    index: int
    task: Task
    library: Library
    backbone: Backbone
    protocol: TrainingProtocol
    seed: int
    stream: str
    progress: Progress
    record: Record

    @property
    def settings(self) -> tuple[Setting, ...]:
        return self.protocol.settings(self.backbone.name)

    def paths(self) -> dict[str, Path]:
        """The paths of all tasks learned so far, the oldest first."""
        return {name: entry.path for name, entry in self.library.tasks.items()}

    def head_fits(self, path: Path) -> bool:
        """Whether the head of a path has as many outputs as this task has classes."""
        return len(self.library.state(path[-1])[BIAS]) == self.task.n_classes

    def refuse_convolutions(self, learner: str) -> None:
        if not all(isinstance(piece, Dense) for block in self.backbone.blocks for piece in block.pieces):
            name = self.backbone.name
            raise InputError(
                f"{learner} works with the fully connected backbone only, not {name!r}; use --backbone fc."
            )

    def train(
        self,
        candidates: Sequence[Candidate],
        settings: Sequence[Setting] | None = None,
        rules: Rules = PLAIN,
        states: Mapping[str, State] | None = None,
        backbone: Backbone | None = None,
    ) -> Outcome:
        """Train candidates under all settings (None: the protocol's).

        Slots name modules of the library, or of `states`, which goes first: states that a learner has made itself.
        """
        states, candidates = states or {}, list(candidates)
        self._check(candidates, states, backbone or self.backbone)
        stored = {name: self.library.state(name) for name in modules_named(candidates) - set(states)}
        outcome = train(
            self.job({**stored, **states}, rules, backbone), candidates, settings or self.settings, self.progress
        )
        self._record_all(outcome)
        return outcome

    def fit(self, job: Job, model: Model, read: Callable[[Trained], Trained] = lambda result: result) -> Outcome:
        """Train a model of the learner's own; `read` makes the results of candidates out of its members'."""
        outcome = fit(job, model, self.progress)
        outcome = replace(outcome, results=[read(result) for result in outcome.results])
        self._record_all(outcome)
        return outcome

    def job(self, modules: Mapping[str, State], rules: Rules = PLAIN, backbone: Backbone | None = None) -> Job:
        there = {name: to_device(state, self.task.train.x.device) for name, state in modules.items()}
        place = (self.stream, self.index)
        speed = Speed.of(self.task.train.x.device)
        return Job(self.task, backbone or self.backbone, there, self.protocol, self.seed, place, rules, speed)

    def _record_all(self, outcome: Outcome) -> None:
        for result in outcome.results:
            self.record("candidate", _summary(result))
        self.record("trained", {"steps": outcome.steps, "step_seconds": round(outcome.step_seconds, 4)})

    def keep_best(
        self,
        candidates: Sequence[Candidate],
        replace_copied: bool = False,
        settings: Sequence[Setting] | None = None,
        rules: Rules = PLAIN,
    ) -> "Learned":
        """Train all, keep the best. `replace_copied`: old tasks that used a copied module now use the copy."""
        return self.keep(self.train(candidates, settings, rules), replace_copied)

    def keep(self, outcome: Outcome, replace_copied: bool = False, chosen: Trained | None = None) -> "Learned":
        """Keep one of what was trained (None: the best)."""
        chosen = chosen or best(outcome.results)
        path = tuple(
            self._module_name(slot, b) for slot, b in zip(chosen.member.candidate, self._blocks(), strict=True)
        )
        entries = {self.name: TaskEntry(self.name, path, {})}
        if replace_copied:
            entries |= self._repointed(chosen.member.candidate, path)
        flops = paper_flops(outcome.results, chosen.member.setting, self.backbone)
        return Learned(chosen, Change(self.new_modules(chosen.states), entries), flops, outcome.flops)

    def new_modules(self, states: Sequence[State | None]) -> dict[str, tuple[str, State]]:
        """This task's modules, for a change of the library: one for each block that has a state."""
        own = zip(self._blocks(), states, strict=True)
        return {f"{self.name}.{block}": (block, state) for block, state in own if state is not None}

    def _repointed(self, candidate: Candidate, path: Path) -> dict[str, TaskEntry]:
        new = {slot.module: module for slot, module in zip(candidate, path, strict=True) if isinstance(slot, Copy)}
        return {
            name: TaskEntry(name, tuple(new.get(module, module) for module in entry.path), entry.info)
            for name, entry in self.library.tasks.items()
        }

    def _check(self, candidates: Sequence[Candidate], states: Mapping[str, State], net: Backbone) -> None:
        """What a learner got wrong is told before anything is trained."""
        if not candidates:
            raise InputError(f"the learner has no candidate for {self.name}; let it give one or more.")
        for candidate in candidates:
            if not isinstance(candidate, tuple) or not all(isinstance(slot, Slot) for slot in candidate):
                raise InputError(
                    f"{candidate!r} is no candidate; let the learner give tuples of Fresh(), Reuse(module) and "
                    f"Copy(module)."
                )
            if len(candidate) != len(net.blocks):
                raise InputError(
                    f"a candidate for {self.name} has {len(candidate)} slots, but {net.name} has "
                    f"{len(net.blocks)} blocks; let the learner give one slot for each."
                )
        unknown = sorted(modules_named(candidates) - set(states) - set(self.library.modules))
        if unknown:
            raise InputError(
                f"a candidate for {self.name} names the module {unknown[0]!r}, which there is not; let the learner "
                f"take modules from lesson.paths()."
            )

    def _blocks(self) -> Iterator[str]:
        return (block.name for block in self.backbone.blocks)

    def _module_name(self, slot: Slot, block: str) -> str:
        return slot.module if isinstance(slot, Reuse) else f"{self.name}.{block}"


@dataclass(frozen=True, eq=False)
class Learned:
    """The candidate that was kept, the change of the library, and the operations: the paper's count, and all.

    `memory` is the number of values the learner keeps, as the paper counts them; None: those of the modules in use.
    `network` runs the states of `chosen`; None: the lesson's backbone does. `seconds` tells how long it took where that
    is known; None: as long as the lesson.
    """

    chosen: Trained
    change: Change
    paper_flops: int
    flops: int
    memory: int | None = None
    network: Network | None = None
    seconds: float | None = None


class Learner(Protocol):
    """A learner is a frozen dataclass of its hyper-parameters with this one method."""

    def learn(self, lesson: Lesson) -> Learned: ...


def learned_by(learner: Learner, lesson: Lesson) -> Learned:
    """What a learner makes of a lesson. One that somebody has just written may have forgotten to give it back."""
    learned: object = learner.learn(lesson)
    if not isinstance(learned, Learned):
        raise InputError(
            f"{type(learner).__name__}.learn gave back {learned!r}; let it return what lesson.keep_best returns."
        )
    return learned


def all_fresh(lesson: Lesson) -> Candidate:
    return tuple(Fresh() for _ in lesson.backbone.blocks)


def to_device(state: State, device: Any) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}


def _summary(result: Trained) -> dict[str, Any]:
    setting = result.member.setting
    return {
        "slots": describe(result.member.candidate),
        "modules": [None if isinstance(slot, Fresh) else slot.module for slot in result.member.candidate],
        "lr": setting.lr,
        "weight_decay": setting.weight_decay,
        "val_accuracy": result.val_accuracy,
        "best_step": result.best_step,
        "steps": result.steps,
    }


def paper_flops(results: Sequence[Trained], setting: Setting, backbone: Backbone) -> int:
    """The paper's way of counting: forward passes over the samples seen until the stop, under the winning setting,
    summed over the candidates; whatever is frozen or shared counts in full."""
    return sum(r.samples for r in results if r.member.setting == setting) * forward_flops(backbone)
