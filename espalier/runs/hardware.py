"""What a run was made with: versions and machine, for the record."""

import os
import platform
from typing import Any

import numpy
import torch

from espalier.version import __version__


def versions() -> dict[str, str]:
    return {
        "espalier": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def hardware(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts
