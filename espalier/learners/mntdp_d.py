"""MNTDP-D: deterministic search around the most similar past path.

Veniat, Denoyer, Ranzato: "Efficient Continual Learning with Modular Networks and Task-Driven Priors", ICLR 2021,
section 4 and algorithm 2. The prior picks past paths by nearest neighbours; every candidate of the search space is
trained; the one with the best validation accuracy is kept, and its new modules join the library.
"""

from dataclasses import dataclass, replace

from espalier.learners.lesson import Learned, Lesson
from espalier.learners.options import option
from espalier.learners.prior import Prior
from espalier.learners.space import Space


@dataclass(frozen=True)
class MntdpD:
    prior: Prior = option(Prior(), "which past paths to search around")
    space: Space = option(Space(), "which candidates to build around them")
    tolerance: float = option(
        0.0, "candidates this many standard errors below the best validation accuracy count as good; more re-use wins"
    )

    def learn(self, lesson: Lesson) -> Learned:
        if not lesson.library.tasks:
            return lesson.keep_best(self.space.candidates(lesson, []))
        candidates = self.space.candidates(lesson, self.prior.choose(lesson))
        learned = lesson.keep_best(candidates, tolerance=self.tolerance)
        return replace(learned, flops=learned.flops + self.prior.flops(lesson))
