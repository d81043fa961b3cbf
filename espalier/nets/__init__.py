"""Networks as lists of blocks, each block for one member or for many side by side."""

from espalier.nets.backbone import Backbone, Block, Network, backbone, numbers, parameters, split_name, with_widths
from espalier.nets.pieces import BIAS, EVAL, WEIGHT, Mode, State, is_buffer

__all__ = [
    "BIAS",
    "EVAL",
    "WEIGHT",
    "Backbone",
    "Block",
    "Mode",
    "Network",
    "State",
    "backbone",
    "is_buffer",
    "numbers",
    "parameters",
    "split_name",
    "with_widths",
]
