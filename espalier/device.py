"""Where tensors are computed: a device by its name, and how cuDNN chooses its kernels there."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from espalier.errors import InputError


def names(device: str) -> list[str]:
    """The devices in a list such as "cuda:0,cuda:1", each once."""
    return list(dict.fromkeys(part.strip() for part in device.split(",")))


def find(name: str) -> torch.device:
    """The device of that name, which nothing is done with yet."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")  # nothing can be computed there
    if device.type == "cpu" and device.index in (None, 0):
        return torch.device("cpu")
    if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
        return device
    built = torch.version.cuda or torch.version.hip or not name.startswith("cuda")  # for GPUs at all
    why = "use cpu, or cuda where there is a GPU" if built else "this build of torch is for CPUs alone"
    raise InputError(f"there is no device {name!r} here; {why}.")


def named(name: str) -> torch.device:
    """The device of that name, ready for use."""
    device = find(name)
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        if out_of_memory(error):
            raise
        raise InputError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}).") from None
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # our kernels run on the current one
    return device


@dataclass(frozen=True)
class Flags:
    deterministic: bool
    tf32: bool


AS_TORCH_COMES = Flags(deterministic=False, tf32=True)
# The same seed is to give the same bytes, on a GPU too; and predictions, which are float32, are to be just that.
AS_IN_RUNS = Flags(deterministic=True, tf32=False)


@contextmanager
def cudnn(flags: Flags) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.allow_tf32, cudnn.benchmark
    cudnn.deterministic, cudnn.allow_tf32, cudnn.benchmark = flags.deterministic, flags.tf32, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.allow_tf32, cudnn.benchmark = before


def out_of_memory(error: BaseException | None) -> bool:
    """Whether it came for want of memory on the device. An error in a capture is followed by one about the capture."""
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or out_of_memory(error.__context__))


def release(device: torch.device) -> None:
    """Let go of memory that nobody uses any more."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def as_in_runs(name: str) -> AbstractContextManager[None]:
    """Where that device is a CPU, the caller's flags are not even read: torch refuses to tell some combinations."""
    return cudnn(AS_IN_RUNS) if name.startswith("cuda") else nullcontext()
