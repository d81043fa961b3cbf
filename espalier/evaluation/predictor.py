"""How a task of a library predicts: its network, and the tensors to run it with. Knows nothing about images."""

from espalier.library import Library
from espalier.nets import Backbone, Network, backbone


def network_of(library: Library, task: str) -> Network:
    """The network of a task: the backbone, for images and classes such as the task's."""
    return _backbone(library, task)


def _backbone(library: Library, task: str) -> Backbone:
    info = library.tasks[task].info
    channels, height, width = info["image"]
    return backbone(library.backbone, (channels, height, width), len(info["classes"]))
