"""The library: all modules, and the path of every task, on disk. Of networks it knows states alone."""

from espalier.library.library import Change, Library, ModuleEntry, TaskEntry, own_tensors

__all__ = ["Change", "Library", "ModuleEntry", "TaskEntry", "own_tensors"]
