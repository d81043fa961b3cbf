"""All learners by name, with what `espalier learners NAME` says of each. Knows nothing about how they learn."""

import difflib
from dataclasses import dataclass, replace

from espalier.errors import InputError
from espalier.learners.den import Den
from espalier.learners.er import Er
from espalier.learners.ewc import Ewc
from espalier.learners.finetune import Finetune
from espalier.learners.hat import Hat
from espalier.learners.independent import Independent
from espalier.learners.lesson import Learner
from espalier.learners.mntdp_d import MntdpD
from espalier.learners.mntdp_s import MntdpS
from espalier.learners.new_head import NewHead
from espalier.learners.new_leg import NewLeg
from espalier.learners.pnn import Pnn
from espalier.learners.prior import Prior
from espalier.learners.rcl import Rcl
from espalier.learners.space import Space

PLUS = MntdpD(
    Prior("nearest-recoloured"), Space((("suffix", None), ("prefix", 1), ("warm", None))), tolerance=1.0, refit=True
)


@dataclass(frozen=True)
class Entry:
    """A learner as its paper has it; `does` is its line in the list of all."""

    learner: Learner
    does: str
    space: str  # what it tries for a task
    keeps: str  # what it keeps in memory, and so what the metric counts
    forgets: bool = False
    measures_again: bool = False  # old tasks get other modules with the same answers, which is measured
    backbone: str = "resnet"  # the usual one on the paper's streams; "fc": it knows no other
    wider: tuple[float, float] = (1.0, 1.0)  # how many times the usual backbone: on most streams, and on s_long
    # A field whose value is chosen on the whole stream, from the protocol's `strengths`; the first task ignores it.
    tuned: str | None = None


LEARNERS: dict[str, Entry] = {
    "independent": Entry(
        Independent(), "a network of its own for every task", "all blocks fresh", "a whole network per task"
    ),
    "finetune": Entry(
        Finetune(),
        "one network for all tasks, trained on from task to task: it forgets",
        "copies of the last task's blocks, its head too",
        "one network",
        forgets=True,
    ),
    "new-head-freeze": Entry(
        NewHead(finetune=False),
        "the first task's network, frozen, with a new head for each task",
        "the first task's blocks as they are, a fresh head",
        "the first task's network and a head per task",
    ),
    "new-head-finetune": Entry(
        NewHead(finetune=True),
        "one network trained on, with a new head for each task: it forgets",
        "copies of the last task's blocks, a fresh head",
        "one network and a head per task",
        forgets=True,
    ),
    "new-leg-freeze": Entry(
        NewLeg(finetune=False),
        "the first task's network, frozen, with a new first block for each task",
        "a fresh first block, the first task's others as they are",
        "the first task's network and a first block per task",
    ),
    "new-leg-finetune": Entry(
        NewLeg(finetune=True),
        "one network trained on, with a new first block for each: it forgets",
        "a fresh first block, copies of the last task's others",
        "one network and a first block per task",
        forgets=True,
    ),
    "mntdp-d": Entry(
        MntdpD(),
        "the paper's: re-use a prefix of the most similar past path, train the rest",
        "around the nearest past path: all blocks as they are, a fresh head, fresh last two blocks, … all fresh",
        "every module that some task uses, once",
    ),
    "mntdp-d-k-all": Entry(
        MntdpD(Prior(k=None)),
        "mntdp-d around all past paths, not only the most similar",
        "mntdp-d's, around every past path",
        "every module that some task uses, once",
    ),
    "mntdp-d-random": Entry(
        MntdpD(Prior("random")),
        "mntdp-d around a past path taken at random: what the prior is worth",
        "mntdp-d's, around a past path taken at random",
        "every module that some task uses, once",
    ),
    "mntdp-s": Entry(
        MntdpS(),
        "the paper's stochastic search: one network with all paths, and a learned choice among them",
        "around the nearest past path: every prefix of it, then fresh blocks that all paths share",
        "every module that some task uses, once",
    ),
    "mntdp-s-k-all": Entry(
        MntdpS(Prior(k=None)),
        "mntdp-s that may branch off every past path",
        "around all past paths: every prefix of them, then fresh blocks that all paths share",
        "every module that some task uses, once",
    ),
    "mntdp-d-plus": Entry(
        PLUS,
        "mntdp-d that may also replace the first block or train copies, and refits what it keeps",
        "mntdp-d's; a fresh first block under the frozen rest; copies in place of fresh last blocks",
        "every module that some task uses, once",
    ),
}

HAT = Entry(
    Hat(),
    "one network for all tasks; each learns which units it uses, and those stay as they are",
    "copies of the last task's blocks with new gates, a fresh head; four learning rates",
    "one network, and for every task a head, its gates and its batch-norm statistics",
    measures_again=True,
    backbone="alexnet",
)
LEARNERS |= {
    "ewc": Entry(
        Ewc(),
        "one network trained on, its weights held where earlier tasks need them",
        "copies of the last task's blocks under the penalty, a fresh head",
        "one network, a head per task, and for each task a Fisher matrix's diagonal and the weights it is for",
        forgets=True,
        tuned="strength",
    ),
    "online-ewc": Entry(
        Ewc(online=True),
        "ewc with one decayed Fisher matrix for all tasks",
        "copies of the last task's blocks under the penalty, a fresh head",
        "one network, a head per task, one Fisher matrix's diagonal and the weights it is for",
        forgets=True,
        tuned="strength",
    ),
    "er": Entry(
        Er(),
        "one network trained on, with 15 remembered images of every class: it forgets little",
        "copies of all blocks, a fresh part of the head; remembered images in every batch",
        "one network, a head per task and 15 images per class",
        forgets=True,
    ),
    "er-reservoir": Entry(
        Er("reservoir"),
        "as er, with a random sample of the images seen so far",
        "as er",
        "one network, a head per task and 15 images for every class seen",
        forgets=True,
    ),
    "pnn": Entry(
        Pnn(),
        "a new column for every task, which reads all earlier columns; these are frozen",
        "one column, all blocks fresh, with a fresh copy of each block but the first per earlier column",
        "all columns with their copies: grows with the square of the number of tasks",
    ),
    "den": Entry(
        Den(),
        "one fully connected net: retrains what a task needs, adds units, splits those that drift",
        "a sparse head; the units connected to it retrained; new units if the loss stays high; drifted units split",
        "one network with all its units, a head per task, a time stamp per unit",
        forgets=True,
        backbone="fc",
    ),
    "rcl": Entry(
        Rcl(),
        "a controller taught by reinforcement adds units to each layer for a task; fully connected nets only",
        "children of the last network, frozen, with 0 to 30 new units in each hidden layer and a new head",
        "the newest network, which holds all older ones, and a head per task",
        backbone="fc",
    ),
    "hat": HAT,
    "hat-wide": replace(HAT, does="hat with wider networks: 2.5 times, 6.5 times on s_long", wider=(2.5, 6.5)),
}


def entry(name: str) -> Entry:
    if name not in LEARNERS:
        close = difflib.get_close_matches(name.lower(), LEARNERS, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no learner {name!r}; {hint}the learners are {', '.join(LEARNERS)}.")
    return LEARNERS[name]
