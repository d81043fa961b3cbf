"""Hyper-parameters that carry their own explanation, for the fields of a learner's dataclass."""

from dataclasses import field, fields, is_dataclass
from typing import Any

from espalier.errors import InputError


def option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


def options(learner: Any) -> list[tuple[str, Any, str]]:
    """Name, value and meaning of every field of a learner."""
    return [(f.name, getattr(learner, f.name), f.metadata.get("meaning", "")) for f in fields(learner)]


def described(learner: Any) -> str:
    """A learner and those of its values that are not its class's defaults: a run is known by it. So a field that is
    added later, with a default that changes nothing, does not make another run of it. What tells itself in its own
    way, and not as dataclasses do, is left to it."""
    name = type(learner).__name__
    if repr(learner) == object.__repr__(learner):  # its place in memory, another in every process
        raise InputError(f"{name} does not tell its values, by which a run is known; make it a dataclass.")
    if not is_dataclass(learner) or not repr(learner).startswith(f"{name}("):
        return repr(learner)
    values = [(f.name, getattr(learner, f.name)) for f in fields(learner) if getattr(learner, f.name) != f.default]
    return f"{name}({', '.join(f'{key}={described(value)}' for key, value in values)})"
