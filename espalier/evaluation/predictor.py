"""How a task of a library predicts: its network, and the tensors to run it with. Knows nothing about images."""

from espalier.library import Library
from espalier.nets import Backbone, Network, backbone
from espalier.nets.columns import Columns


def network_of(library: Library, task: str) -> Network:
    """The network of a task: the backbone, for images and classes such as the task's; beside the columns of earlier
    tasks, if the task's info names any."""
    own, columns = _backbone(library, task), library.tasks[task].info.get("columns")
    if columns is None:
        return own
    return Columns(own, {earlier: library.states(earlier) for earlier in columns})


def _backbone(library: Library, task: str) -> Backbone:
    info = library.tasks[task].info
    channels, height, width = info["image"]
    return backbone(library.backbone, (channels, height, width), len(info["classes"]))
