"""The library: all modules, and the path of every task, on disk. Knows nothing about networks or training."""

from espalier.library.library import Change, Library, ModuleEntry, State, TaskEntry, own_tensors

__all__ = ["Change", "Library", "ModuleEntry", "State", "TaskEntry", "own_tensors"]
