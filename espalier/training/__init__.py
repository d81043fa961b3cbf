"""Candidates in, trained candidates out."""

from espalier.training.candidate import Candidate, Copy, Fresh, Member, Reuse, Setting, Slot, Trained, best, describe
from espalier.training.protocol import PROTOCOLS, Protocol, protocol
from espalier.training.train import Job, Outcome, train

__all__ = [
    "PROTOCOLS",
    "Candidate",
    "Copy",
    "Fresh",
    "Job",
    "Member",
    "Outcome",
    "Protocol",
    "Reuse",
    "Setting",
    "Slot",
    "Trained",
    "best",
    "describe",
    "protocol",
    "train",
]
