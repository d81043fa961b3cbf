"""A module's tensors as the bytes of a safetensors file, and back. Knows nothing about libraries, blocks or tasks.

The file's name carries the start of its checksum, so one name can only ever mean one content.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from espalier.errors import InputError
from espalier.files import digest, sync, write_bytes
from espalier.nets import State

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)
SUFFIX = ".safetensors"


def file_name(name: str, sha256: str) -> str:
    return f"{name}-{sha256[:12]}{SUFFIX}"


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encode(state: Mapping[str, torch.Tensor]) -> bytes:
    """The bytes of a file that holds `state`; a ValueError says what cannot be stored."""
    copies: State = {}
    for key, tensor in state.items():
        _check_tensor(key, tensor)
        # A copy: safetensors refuses tensors that share memory or are laid out in another order.
        copies[key] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return save(dict(sorted(copies.items())))


def _check_tensor(key: object, tensor: object) -> None:
    if not isinstance(key, str) or key == "__metadata__" or not key.isprintable():
        raise ValueError(f"{key!r} cannot be the name of a tensor")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        raise ValueError(f"{key!r} is not a dense tensor")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"tensor {key!r} is of type {tensor.dtype}, not one of {', '.join(map(str, DTYPES))}")


def keep(path: Path, content: bytes) -> None:
    """Write `path`, unless a process that was killed before it could use the file has left it there."""
    if not path.exists():
        write_bytes(path, content)
    elif digest(path) == checksum(content):
        sync(path.parent)
    else:
        raise InputError(f"{path} is damaged, and no stored file is ever written again; remove it, then try again.")


def read(path: Path, sha256: str, cure: str) -> State:
    """The state in `path`, if the file is what it was when it was stored; `cure` says what to do otherwise."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {cure}.") from None
    if checksum(content) != sha256:
        raise InputError(f"{path} is damaged (its checksum is not the one in library.json); {cure}.")
    try:
        state = load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError):
        raise InputError(f"{path} is not a safetensors file of tensors; {cure}.") from None
    if any(tensor.dtype not in DTYPES for tensor in state.values()):
        raise InputError(f"{path} holds tensors of a type that is never stored; {cure}.")
    return dict(sorted(state.items()))
