"""Networks as lists of blocks, each block for one member or for many side by side."""

from espalier.nets.backbone import BACKBONES, Backbone, Block, Network, backbone, parameters, split_name, with_widths
from espalier.nets.pieces import EVAL, Mode, State, is_buffer

__all__ = [
    "BACKBONES",
    "EVAL",
    "Backbone",
    "Block",
    "Mode",
    "Network",
    "State",
    "backbone",
    "is_buffer",
    "parameters",
    "split_name",
    "with_widths",
]
