"""`library.json`: which modules there are, and the path of every task. Knows nothing about tensors.

`Index` checks itself, so one set of rules holds for what is read and for what is about to be written.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from espalier.errors import InputError
from espalier.files import write_json
from espalier.library.store import file_name

FORMAT, VERSION = "espalier-library", 1
FILE = "library.json"
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # part of a file's name: must not lead out of the folder
SHA256 = re.compile(r"[0-9a-f]{64}")

Value = TypeVar("Value")
Table = dict[str, Any]


@dataclass(frozen=True)
class TaskEntry:
    """A task: its path, one module per block, and plain JSON about it (classes, mean, std, ...)."""

    name: str
    path: tuple[str, ...]
    info: Mapping[str, Any]


@dataclass(frozen=True)
class ModuleEntry:
    """A stored module; `numbers` says how many values it holds, parameters and buffers together."""

    name: str
    block: str
    file: str
    sha256: str
    numbers: int

    @staticmethod
    def of(name: str, block: str, sha256: str, numbers: int) -> "ModuleEntry":
        return ModuleEntry(name, block, f"modules/{file_name(name, sha256)}", sha256, numbers)


@dataclass(frozen=True)
class Index:
    """Everything in `library.json`; `extras` gives the checksum of each. A ValueError says what is wrong."""

    backbone: str
    blocks: tuple[str, ...]
    modules: Mapping[str, ModuleEntry]
    tasks: Mapping[str, TaskEntry]
    extras: Mapping[str, str]

    def __post_init__(self) -> None:
        _check_text(self.backbone, "the backbone")
        if not self.blocks or len(set(self.blocks)) != len(self.blocks):
            raise ValueError("a library needs blocks, each with a name of its own")
        for kind in ("blocks", "modules", "tasks", "extras"):
            for name in getattr(self, kind):
                check_name(name, kind)
        for module in self.modules.values():
            if module.block not in self.blocks:
                raise ValueError(f"module {module.name!r} is of block {module.block!r}, which there is not")
            if not SHA256.fullmatch(module.sha256) or module.numbers < 0:
                raise ValueError(f"the checksum or size of module {module.name!r} cannot be right")
        for name, sha256 in self.extras.items():
            if not SHA256.fullmatch(sha256):
                raise ValueError(f"the checksum of extra {name!r} cannot be right")
        for task in self.tasks.values():
            self._check_path(task)

    def _check_path(self, task: TaskEntry) -> None:
        if len(task.path) != len(self.blocks):
            raise ValueError(f"task {task.name!r} has {len(task.path)} modules for {len(self.blocks)} blocks")
        for name, block in zip(task.path, self.blocks, strict=True):
            if name not in self.modules:
                raise ValueError(f"task {task.name!r} uses module {name!r}, which there is not")
            if self.modules[name].block != block:
                found = self.modules[name].block
                raise ValueError(f"task {task.name!r} has module {name!r} at block {block!r}, but it is of {found!r}")


def check_name(name: object, kind: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} in {kind!r} is not a name of up to 128 letters, digits, '.', '-' and '_'")


def plain(value: Any, where: str) -> Any:
    """A copy of `value` as JSON will give it back; a ValueError names what JSON cannot hold."""
    if isinstance(value, str):
        return _check_text(value, where)
    if value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int) and abs(value) < 2**64:  # Python will not print or read numbers of any length
        return value
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {_check_text(key, where): plain(item, where) for key, item in value.items()}
    raise ValueError(f"{where} holds a {type(value).__name__} that JSON cannot hold")


def _check_text(value: object, where: str) -> str:
    """JSON can spell half a surrogate pair, which no terminal or file will take."""
    if not isinstance(value, str) or re.search("[\ud800-\udfff]", value):
        raise ValueError(f"{where} is, or holds, something that is not valid text")
    return value


# Reading and writing


def read_index(folder: Path) -> Index:
    path = folder / FILE
    table = _load(path)
    version = table.get("version")
    if table.get("format") != FORMAT or type(version) is not int:
        raise InputError(f"{path} does not describe a library of modules; restore it from a copy.")
    if version > VERSION:
        raise InputError(f"{path} was made by a newer Espalier (library version {version}); upgrade Espalier.")
    try:
        if version < VERSION:
            raise ValueError(f"there never was a version {version}")
        return _parse(table)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy.") from None
    except RecursionError:
        raise InputError(f"{path} is damaged (tables within tables without end); restore it from a copy.") from None


def write_index(folder: Path, index: Index) -> None:
    modules = {m.name: {"block": m.block, "sha256": m.sha256, "numbers": m.numbers} for m in index.modules.values()}
    tasks = {task.name: {"path": list(task.path), "info": dict(task.info)} for task in index.tasks.values()}
    extras = {name: {"sha256": sha256} for name, sha256 in index.extras.items()}
    head = {"format": FORMAT, "version": VERSION, "backbone": index.backbone, "blocks": list(index.blocks)}
    write_json(folder / FILE, {**head, "modules": modules, "tasks": tasks, "extras": extras})


def _load(path: Path) -> Table:
    try:
        table = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"there is no library in {path.parent} (no {FILE}); name the folder of one.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); make it readable.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged (it is not valid JSON); restore it from a copy.") from None
    return table if isinstance(table, dict) else {}


def _parse(table: Table) -> Index:
    modules = {
        name: ModuleEntry.of(name, _field(t, "block", str), _field(t, "sha256", str), _field(t, "numbers", int))
        for name, t in _tables(table, "modules").items()
    }
    tasks = {
        name: TaskEntry(name, _strings(t, "path"), plain(_field(t, "info", dict), f"the info of task {name!r}"))
        for name, t in _tables(table, "tasks").items()
    }
    extras = {name: _field(t, "sha256", str) for name, t in _tables(table, "extras").items()}
    return Index(_field(table, "backbone", str), _strings(table, "blocks"), modules, tasks, extras)


def _field(table: Table, key: str, kind: type[Value]) -> Value:
    value = table.get(key)
    if type(value) is not kind:  # not isinstance: True is no number here
        words = {int: "a whole number", str: "text", list: "a list", dict: "a table"}
        raise ValueError(f"{key!r} is not {words[kind]}")
    return value


def _strings(table: Table, key: str) -> tuple[str, ...]:
    values = _field(table, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key!r} is not a list of names")
    return tuple(values)


def _tables(table: Table, key: str) -> dict[str, Table]:
    tables = _field(table, key, dict)
    if not all(isinstance(value, dict) for value in tables.values()):
        raise ValueError(f"{key!r} is not a table of tables")
    return tables
