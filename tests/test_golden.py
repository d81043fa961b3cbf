"""The bytes of the embedded sets and of the mini streams, as SHA-256: a change here changes every user's images.

`python -m tests.test_golden` prints the table anew, to be pasted over the one below when a change is meant.
"""

import hashlib
from importlib import resources

import pytest

from espalier import DataFolder, stream
from espalier.data.embedded import EMBEDDED, embedded
from espalier.streams.task import SPLITS

STREAMS = ("s_minus_mini", "s_in_mini", "s_long_mini")
TABLE = "s_long_paper.csv"
DATA = DataFolder("/nonexistent")  # one for all: it keeps the drawn images

GOLDEN = {
    "digits": "531ba00bf6ebb3ce077e33d4521b1d96ad46ec9c91506e1f42786ed5968cb4cf",
    "shapes": "86387952a94478933800cce1d036201d1afa0978074fe48e2eaac93c39d52fd9",
    "textures": "a7f23aeeb38d08cb6589c6e70d556ad632778b8039f4ed738df7d8be45b4ef1a",
    "letters": "6a861823713c2f50d2f0e12b0ef9632e61a2573231565ec3bcc5ed5316768578",
    "glyphs": "ce8637ded0b19690f2dd508a9ef5fcd2ead631cf9214604fb0c2039b90f3dc29",
    "flags": "83c9de3de966e676ab3823b5f2ff45121f50322dafc43edff2691456ca689001",
    "faces": "40dfce359daef8e37c4543cc0d743bf3e6af1a0e9c6ed07ba69dee06244fadd6",
    "s_minus_mini": "631e464a3924488bdf90a0ba46aaf68fea0698f6a919424203d795065879e0d5",
    "s_in_mini": "a1fbea37312684ec3720142e00df66fae1875846508da2dc07cd08d221e3ded3",
    "s_long_mini": "f4b3bd365e6d744e06c8d06a8ad7b19bb8b105b0788eab3ac67d73c3a0f20c23",
    "s_long_paper.csv": "36c442a58161d8936332d06c6b76e58c6bcf3e2a86c468a39f036df916c0396f",
}


def hash_dataset(name: str) -> str:
    """Images and labels of every split, the splits by name."""
    digest = hashlib.sha256()
    for _, split in sorted(embedded(name).splits.items()):
        digest.update(split.images.tobytes() + split.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def hash_stream(name: str) -> str:
    """Images and labels of every task's train, val and test split, with seed 0."""
    digest = hashlib.sha256()
    for task in stream(name, 0, DATA):
        for split in (getattr(task, s) for s in SPLITS):
            digest.update(split.x.numpy().tobytes() + split.y.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def hash_table(name: str) -> str:
    return hashlib.sha256(resources.files("espalier.streams").joinpath(name).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_set_has_the_bytes_it_always_had(name: str) -> None:
    assert hash_dataset(name) == GOLDEN[name]


@pytest.mark.parametrize("name", STREAMS)
def test_a_mini_stream_has_the_bytes_it_always_had(name: str) -> None:
    assert hash_stream(name) == GOLDEN[name]


def test_the_paper_s_table_has_the_bytes_it_always_had() -> None:
    assert hash_table(TABLE) == GOLDEN[TABLE]


def test_nothing_stands_in_the_table_that_is_not_compared() -> None:
    assert list(GOLDEN) == [*EMBEDDED, *STREAMS, TABLE]


if __name__ == "__main__":
    hashes = {name: hash_dataset(name) for name in EMBEDDED} | {name: hash_stream(name) for name in STREAMS}
    hashes[TABLE] = hash_table(TABLE)
    print("GOLDEN = {", *(f'    "{name}": "{value}",' for name, value in hashes.items()), "}", sep="\n")
