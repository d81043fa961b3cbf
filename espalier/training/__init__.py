"""Candidates in, trained candidates out."""

from espalier.training.candidate import (
    Candidate,
    Copy,
    Fresh,
    Member,
    Reuse,
    Setting,
    Slot,
    Trained,
    best,
    describe,
)
from espalier.training.job import Job
from espalier.training.model import Model
from espalier.training.protocol import PROTOCOLS, Protocol, protocol
from espalier.training.rules import Replay, Rules
from espalier.training.train import Outcome, fit, train, train_for

__all__ = [
    "PROTOCOLS",
    "Candidate",
    "Copy",
    "Fresh",
    "Job",
    "Member",
    "Model",
    "Outcome",
    "Protocol",
    "Replay",
    "Reuse",
    "Rules",
    "Setting",
    "Slot",
    "Trained",
    "best",
    "describe",
    "fit",
    "protocol",
    "train",
    "train_for",
]
