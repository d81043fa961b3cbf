"""What a run is asked to do. Knows nothing about how it is done."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from espalier.errors import InputError
from espalier.learners import LEARNERS
from espalier.nets import split_name


@dataclass(frozen=True)
class Settings:
    """What a run is asked to do; `Settings.of` fills in what is usual for the stream."""

    stream: str
    learner: str
    backbone: str
    protocol: str
    seed: int = 0

    @staticmethod
    def of(
        stream: str, learner: str, seed: int = 0, backbone: str | None = None, protocol: str | None = None
    ) -> "Settings":
        mini = stream.endswith("_mini")
        usual = _usual_backbone(stream, learner, mini)
        return Settings(stream, learner, backbone or usual, protocol or ("quick" if mini else "paper"), seed)

    @staticmethod
    def told(begun: Mapping[str, Any]) -> "Settings":
        """As `run.json` tells them; a ValueError where it does not."""
        kinds = {field.name: field.type for field in fields(Settings)}
        if any(type(begun.get(name)) is not kind for name, kind in kinds.items()):
            raise ValueError("settings are missing, or not what they should be")
        return Settings(**{name: begun[name] for name in kinds})

    @property
    def folder_name(self) -> str:
        name = f"{self.stream}--{self.learner}--{self.backbone}--{self.protocol}--seed{self.seed}"
        if re.search(r"[/\\\x00-\x1f]", name):  # it would lead elsewhere
            raise InputError(f"{name!r} cannot be the name of a run's folder; leave out slashes and line breaks.")
        return name


def _usual_backbone(stream: str, learner: str, mini: bool) -> str:
    """The paper's: a fully connected one for permuted images, and for learners that know no other; else the learner's.
    On the mini streams they are small. An own learner has what most have."""
    known = LEARNERS.get(learner, LEARNERS["independent"])
    if stream.startswith("permuted") or known.backbone == "fc":
        usual = "fc-x0.1" if mini else "fc"
    else:
        usual = "tiny" if mini else known.backbone
    wider = known.wider[stream.startswith("s_long")]
    if wider == 1:
        return usual
    plain, factor = split_name(usual)
    return f"{plain}-x{factor * wider:g}"
