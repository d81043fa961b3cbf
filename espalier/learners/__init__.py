"""The learners, one file each; `LEARNERS` has a line for each name."""

import difflib

from espalier.errors import InputError
from espalier.learners.finetune import Finetune
from espalier.learners.independent import Independent
from espalier.learners.lesson import Learned, Learner, Lesson
from espalier.learners.mntdp_d import MntdpD
from espalier.learners.new_head import NewHead
from espalier.learners.new_leg import NewLeg
from espalier.learners.prior import Prior
from espalier.learners.space import Space

PLUS = MntdpD(Prior("nearest-recoloured"), Space((("suffix", None), ("prefix", 1), ("warm", None))))

LEARNERS: dict[str, tuple[Learner, str]] = {
    "independent": (Independent(), "a network of its own for every task"),
    "finetune": (Finetune(), "one network for all tasks, trained on from task to task: it forgets"),
    "new-head-freeze": (NewHead(finetune=False), "the first task's network, frozen, with a new head for each task"),
    "new-head-finetune": (NewHead(finetune=True), "one network trained on, with a new head for each task: it forgets"),
    "new-leg-freeze": (
        NewLeg(finetune=False),
        "the first task's network, frozen, with a new first block for each task",
    ),
    "new-leg-finetune": (NewLeg(finetune=True), "one network trained on, with a new first block for each: it forgets"),
    "mntdp-d": (MntdpD(), "the paper's: re-use a prefix of the most similar past path, train the rest"),
    "mntdp-d-plus": (PLUS, "mntdp-d that may also replace the first block, or train copies of old blocks"),
}


def learner(name: str) -> Learner:
    if name not in LEARNERS:
        close = difflib.get_close_matches(name, LEARNERS, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no learner {name!r}; {hint}the learners are {', '.join(LEARNERS)}.")
    return LEARNERS[name][0]


__all__ = ["LEARNERS", "Learned", "Learner", "Lesson", "MntdpD", "Prior", "Space", "learner"]
