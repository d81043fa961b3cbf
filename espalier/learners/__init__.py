"""The learners, one file each; `LEARNERS` has them by name."""

from espalier.learners.lesson import Learned, Learner, Lesson
from espalier.learners.mntdp_d import MntdpD
from espalier.learners.prior import Prior
from espalier.learners.registry import LEARNERS, entry
from espalier.learners.space import Space

__all__ = ["LEARNERS", "Learned", "Learner", "Lesson", "MntdpD", "Prior", "Space", "entry"]
