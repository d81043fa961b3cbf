"""Where all randomness comes from: a generator named by what it is for.

Knows nothing about data or networks. `RandomState` is used because its streams are frozen by NumPy's own promise
(NEP 19), so a seed means the same images on every NumPy there will be.
"""

import hashlib
import json

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.RandomState:
    """A generator of its own for (seed, purpose): asking in another order, or for others too, changes nothing."""
    name = json.dumps([int(seed), *purpose]).encode()
    return np.random.RandomState(np.frombuffer(hashlib.sha256(name).digest(), dtype="<u4").astype(np.uint32))


def torch_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit number for `torch.Generator.manual_seed`, named the same way."""
    name = json.dumps(["torch", int(seed), *purpose]).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little") >> 1
