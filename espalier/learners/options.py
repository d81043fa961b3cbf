"""Hyper-parameters that carry their own explanation, for the fields of a learner's dataclass."""

from dataclasses import field, fields
from typing import Any


def option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


def options(learner: Any) -> list[tuple[str, Any, str]]:
    """Name, value and meaning of every field of a learner."""
    return [(f.name, getattr(learner, f.name), f.metadata.get("meaning", "")) for f in fields(learner)]
