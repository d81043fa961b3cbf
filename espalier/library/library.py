"""The library: modules that never change, and the path of every task. Of networks it knows states alone.

A folder holds `library.json` and one safetensors file per module. New files are written first; replacing
`library.json` is the one moment at which all of a change becomes visible. Readers need no lock.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from espalier.errors import InputError
from espalier.files import sync
from espalier.library.index import FILE, Index, ModuleEntry, TaskEntry, check_name, plain, read_index, write_index
from espalier.library.lock import write_lock
from espalier.library.store import SUFFIX, checksum, encode, file_name, keep, read
from espalier.nets import State, numbers

__all__ = ["Change", "Library", "ModuleEntry", "TaskEntry", "own_tensors"]


@dataclass(frozen=True)
class Change:
    """What learning one task adds: stored whole or not at all.

    `modules`: new module name -> (block, state). `tasks`: tasks to add or, under a name there is, to give another
    path. `extras`: whatever else a learner must keep; replaces all former extras, None keeps them.
    """

    modules: Mapping[str, tuple[str, State]]
    tasks: Mapping[str, TaskEntry]
    extras: Mapping[str, State] | None = None


def own_tensors(task: str) -> str:
    """The extra that holds a task's own tensors, named "block/tensor": they lie over those of its modules (a mask)."""
    return f"own.{task}"


class Library:
    """A library as it was when it was opened, reloaded or last committed to.

    Use `Library.create` or `Library.open`; `tasks` and `modules` are in the order in which they were added.
    """

    folder: Path
    backbone: str
    blocks: tuple[str, ...]
    tasks: dict[str, TaskEntry]
    modules: dict[str, ModuleEntry]

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self._writing = False
        self._states: dict[ModuleEntry, State] = {}
        self._show(index)

    @staticmethod
    def create(folder: Path | str, backbone: str, blocks: Sequence[str]) -> "Library":
        """A new library without tasks; a folder that holds one already is refused."""
        folder = Path(folder)
        try:
            index = Index(backbone, tuple(blocks), {}, {}, {})
            folder.mkdir(parents=True, exist_ok=True)
            with write_lock(folder):
                if (folder / FILE).exists():
                    raise InputError(f"{folder} holds a library already; open it or choose another folder.")
                write_index(folder, index)
            sync(folder.parent)
        except ValueError as error:
            raise InputError(f"the library {folder} cannot be made: {error}.") from None
        except OSError as error:
            raise InputError(
                f"the library {folder} cannot be made ({error.strerror}); choose a folder you may write to."
            ) from None
        return Library(folder, index)

    @staticmethod
    def open(folder: Path | str) -> "Library":
        return Library(Path(folder), read_index(Path(folder)))

    def state(self, module: str) -> State:
        """The tensors of a module, read once and then kept: do not change them."""
        if module not in self.modules:
            raise InputError(f"the library {self.folder} has no module {module!r}; reload it if that is a new one.")
        entry = self.modules[module]
        if entry not in self._states:
            self._states[entry] = self._read_module(entry)
        return self._states[entry]

    def extras(self) -> dict[str, State]:
        return self._read_extras(self._index)

    def states(self, task: str) -> list[State]:
        """The tensors of a task's path, block by block, with the task's own tensors over them (see `own_tensors`)."""
        own = self._own(task)
        return [
            self.state(module)
            | {key.removeprefix(f"{block}/"): t for key, t in own.items() if key.startswith(f"{block}/")}
            for module, block in zip(self.tasks[task].path, self.blocks, strict=True)
        ]

    def _own(self, task: str) -> State:
        name = own_tensors(task)
        if name not in self._index.extras:
            return {}
        return self._read_extra(name, self._index.extras[name])

    def used_numbers(self) -> int:
        """How many values the modules hold that some task's path uses, each module once."""
        used = {module for task in self.tasks.values() for module in task.path}
        return sum(self.modules[module].numbers for module in used)

    def reload(self) -> None:
        """See what another process has committed."""
        self._show(read_index(self.folder))

    def verify(self) -> None:
        """Read all that is on disk now, and compare every checksum; the first fault is an InputError."""
        index = read_index(self.folder)
        for entry in index.modules.values():
            self._read_module(entry)
        self._read_extras(index)

    @contextmanager
    def writer(self) -> Iterator[None]:
        """The right to commit, for one writer at a time; starts from what is on disk now."""
        with write_lock(self.folder):
            self.reload()
            self._writing = True
            try:
                yield
            finally:
                self._writing = False

    def commit(self, change: Change) -> None:
        """Store a change; every reader who opens or reloads after this sees all of it."""
        if not self._writing:
            raise InputError(f"the library {self.folder} is open for reading; commit inside 'with library.writer():'.")
        try:
            index, files = _apply(change, self._index)
        except ValueError as error:
            raise InputError(f"the change cannot be stored in {self.folder}: {error}.") from None
        except RecursionError:
            raise InputError(f"the info of a task to be stored in {self.folder} is too deep; make it flat.") from None
        try:
            for name, content in files.items():
                keep(self.folder / name, content)
            write_index(self.folder, index)
        except OSError as error:
            raise InputError(
                f"the library {self.folder} cannot be written ({error.strerror}) and stays as it was; "
                "make room or make it writable, then try again."
            ) from None
        self._show(index)
        self._sweep()

    def _show(self, index: Index) -> None:
        self._index = index
        self.backbone, self.blocks = index.backbone, index.blocks
        self.tasks, self.modules = dict(index.tasks), dict(index.modules)
        used = {index.modules[module] for task in index.tasks.values() for module in task.path}
        self._states = {entry: state for entry, state in self._states.items() if entry in used}

    def _read_module(self, entry: ModuleEntry) -> State:
        cure = f"restore it from a copy; tasks that do not use module {entry.name!r} are not affected"
        state = read(self.folder / entry.file, entry.sha256, cure)
        if numbers(state) != entry.numbers:
            raise InputError(
                f"{self.folder / FILE} is damaged (module {entry.name!r} holds {numbers(state)} numbers, "
                f"not {entry.numbers}); restore it from a copy."
            )
        return state

    def _read_extras(self, index: Index) -> dict[str, State]:
        return {name: self._read_extra(name, sha256) for name, sha256 in index.extras.items()}

    def _read_extra(self, name: str, sha256: str) -> State:
        cure = "reload the library if another process has just committed, or restore the file from a copy"
        return read(self.folder / "extras" / file_name(name, sha256), sha256, cure)

    def _sweep(self) -> None:
        """Remove extras no longer used, and the temporary files of killed writers. Needs the write lock."""
        extras = {file_name(name, sha256) for name, sha256 in self._index.extras.items()}
        unused = [path for path in self.folder.glob(f"extras/*{SUFFIX}") if path.name not in extras]
        temporary = [f".{FILE}.*", f"modules/.*{SUFFIX}.*", f"extras/.*{SUFFIX}.*"]
        for path in [*unused, *(path for pattern in temporary for path in self.folder.glob(pattern))]:
            with suppress(OSError):  # a file left over harms nobody
                path.unlink()


def _apply(change: Change, index: Index) -> tuple[Index, dict[str, bytes]]:
    """The index after `change`, and the files it needs by their path in the folder."""
    files: dict[str, bytes] = {}
    modules, tasks, extras = dict(index.modules), dict(index.tasks), dict(index.extras)
    for name, (block, state) in change.modules.items():
        check_name(name, "modules")
        if name in modules:
            raise ValueError(f"there is a module {name!r} already, and modules never change")
        content = _encode(state, f"module {name!r}")
        modules[name] = ModuleEntry.of(name, block, checksum(content), numbers(state))
        files[modules[name].file] = content
    for name, task in change.tasks.items():
        if name != task.name:
            raise ValueError(f"task {task.name!r} is filed under {name!r}")
        tasks[name] = replace(task, path=tuple(task.path), info=plain(task.info, f"the info of task {name!r}"))
    if change.extras is not None:
        extras.clear()
        for name, state in change.extras.items():
            check_name(name, "extras")
            content = _encode(state, f"extra {name!r}")
            extras[name] = checksum(content)
            if extras[name] != index.extras.get(name):
                files[f"extras/{file_name(name, extras[name])}"] = content
    return replace(index, modules=modules, tasks=tasks, extras=extras), files


def _encode(state: State, what: str) -> bytes:
    try:
        return encode(state)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
