"""MNTDP-S: one network that holds all paths around the most similar past one, and a learned distribution over them.

Veniat, Denoyer, Ranzato: "Efficient Continual Learning with Modular Networks and Task-Driven Priors", ICLR 2021,
section 4 and algorithm 1. The prior picks past paths; one fresh module per block is added, shared by all paths that
branch off to them. Weights and the distribution Γ are trained in turn, on one half of the train images each; when Γ has
settled, its likeliest path is trained on all of them. That path is kept, and its new modules join the library. How a
step goes is told in `training/supernet.py`.

Γ begins with all paths equally likely (section 4.1), and its entropy is that of the distribution over paths. It has
settled at 0.99 for a path (algorithm 1) or, as in the released code, after half of all epochs: with few images and an
entropy weight of 1 it seldom comes to 0.99. The first task is trained as `independent` trains it. Three things differ
from the released code: a weight step trains a drawn path, as algorithm 1 has it, not the likeliest; Γ does not begin
with even odds at every node, which would give one path, that of fresh modules alone, a half; and patience counts from
when a path is fixed, as a search that begins with whole re-use would else be over before it had trained anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from espalier.errors import InputError
from espalier.learners.lesson import Learned, Lesson, Path, all_fresh
from espalier.learners.options import option
from espalier.learners.prior import Prior
from espalier.nets import State
from espalier.training import Candidate, Fresh, Job, Member, Reuse, Trained
from espalier.training.paths import Paths
from espalier.training.supernet import GAMMA, Supernet

FIXES = ("probability", "entropy")


@dataclass(frozen=True)
class MntdpS:
    prior: Prior = option(Prior(), "which past paths to search around: one, or with k=None all of them")
    path_rates: tuple[float, ...] = option((1e-2, 1e-3), "learning rates of Γ, each with every setting of the protocol")
    entropy_weight: float = option(1.0, "how much the entropy of Γ counts against the loss")
    fix: str = option("probability", "when a path is fixed: at a probability above 0.99, or an entropy below 0.001")

    def __post_init__(self) -> None:
        if self.fix not in FIXES:
            raise InputError(f"MNTDP-S cannot fix paths by {self.fix!r}; choose {' or '.join(FIXES)}.")

    def learn(self, lesson: Lesson) -> Learned:
        if not lesson.library.tasks:
            return lesson.keep_best([all_fresh(lesson)])
        old = self.prior.choose(lesson)
        paths = Paths(old, [path for path in old if lesson.head_fits(path)], lesson.task.train.x.device)
        job = lesson.job({m: lesson.library.state(m) for prefix in paths.prefixes for m in prefix})
        settings = [replace(s, path_lr=rate) for s in lesson.settings for rate in self.path_rates]

        def read(result: Trained) -> Trained:
            lesson.record("path", _describe(result, paths))
            return on_its_path(result, paths, job)

        learned = lesson.keep(lesson.fit(job, Supernet(job, paths, settings, self.entropy_weight, self.fix), read))
        return replace(learned, flops=learned.flops + self.prior.flops(lesson))


def on_its_path(result: Trained, paths: Paths, job: Job) -> Trained:
    """What a member of the supernet has learned, as a candidate: the modules on its likeliest path and no others.

    The early states have all blocks, as the path may have been another one then.
    """
    prefix, _ = _likeliest(result.states, paths)
    fresh = len(job.backbone.blocks) - len(prefix)
    candidate: Candidate = (*(Reuse(module) for module in prefix), *(Fresh() for _ in range(fresh)))
    states = (*(None for _ in prefix), *result.states[len(prefix) : -1])
    early = tuple(_whole(then, _likeliest(then, paths)[0], job) for then in result.early)
    return replace(result, member=Member(candidate, result.member.setting), states=states, early=early)


def _whole(states: Sequence[State | None], prefix: Path, job: Job) -> tuple[State | None, ...]:
    return (*(job.modules[module] for module in prefix), *states[len(prefix) : -1])


def _likeliest(states: Sequence[State | None], paths: Paths) -> tuple[Path, float]:
    """The old part of the likeliest path, and the path's probability; the last of the states is Γ's."""
    gamma = states[-1]
    assert gamma is not None
    logits = gamma[GAMMA][None]
    (place,) = paths.likeliest(logits)
    return paths.prefixes[place], paths.log_probabilities(logits)[0, place].exp().item()


def _describe(result: Trained, paths: Paths) -> dict[str, object]:
    setting = result.member.setting
    prefix, probability = _likeliest(result.states, paths)
    rates = {"lr": setting.lr, "weight_decay": setting.weight_decay, "path_lr": setting.path_lr}
    return {**rates, "modules": list(prefix), "probability": probability}
