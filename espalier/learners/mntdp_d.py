"""MNTDP-D: deterministic search around the most similar past path.

Veniat, Denoyer, Ranzato: "Efficient Continual Learning with Modular Networks and Task-Driven Priors", ICLR 2021,
section 4 and algorithm 2. The prior picks past paths by nearest neighbours; every candidate of the search space is
trained; the one with the best validation accuracy is kept, and its new modules join the library.
"""

from dataclasses import dataclass, replace

from espalier.learners.lesson import Learned, Lesson
from espalier.learners.options import option
from espalier.learners.prior import Prior
from espalier.learners.refit import refit
from espalier.learners.second_look import second_look
from espalier.learners.space import Space


@dataclass(frozen=True)
class MntdpD:
    prior: Prior = option(Prior(), "which past paths to search around")
    space: Space = option(Space(), "which candidates to build around them")
    tolerance: float = option(
        0.0,
        "candidates this many standard errors below the best get a second look; whole re-use among them stays (0: no)",
    )
    refit: bool = option(False, "train what was chosen again, on train and validation images together")

    def learn(self, lesson: Lesson) -> Learned:
        paths = self.prior.choose(lesson) if lesson.library.tasks else []
        outcome = lesson.train(self.space.candidates(lesson, paths))
        look = second_look(lesson, outcome.results, self.tolerance)
        learned = lesson.keep(outcome, chosen=look.chosen)
        learned = replace(learned, flops=learned.flops + look.flops + (self.prior.flops(lesson) if paths else 0))
        return refit(lesson, outcome, learned) if self.refit else learned
