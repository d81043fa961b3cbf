"""What a run was made with: versions and machine, for the record."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import numpy
import torch

from espalier.version import __version__

PACKAGE = Path(__file__).parent.parent


def versions() -> dict[str, str]:
    return {
        "espalier": __version__,
        "code": code(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def code(package: Path = PACKAGE) -> str:
    """Tells one state of the source from another, which between two releases have the same version."""
    digest = hashlib.sha256()
    for file in sorted(file for kind in ("*.py", "*.cu") for file in package.rglob(kind)):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def hardware(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts
