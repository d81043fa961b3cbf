"""The paper's metrics, as pure functions of the accuracy matrix and a few counts.

`matrix[i][j]` is the test accuracy on task j after learning task i, for j ≤ i: a list of rows, each longer by one.
"""

from collections.abc import Sequence
from statistics import fmean

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy on all tasks after the last."""
    return fmean(matrix[-1])


def forgetting(matrix: Matrix) -> float:
    """Mean over tasks of (accuracy at the end - accuracy when learned): 0 is none, negative is forgetting."""
    return fmean(final - row[-1] for final, row in zip(matrix[-1], matrix, strict=True))


def transfer(matrix: Matrix, independent: Matrix) -> float:
    """Accuracy on the last task, less that of `independent` on the same last task, seed and protocol."""
    return matrix[-1][-1] - independent[-1][-1]


def lca(curves: Sequence[Sequence[float]]) -> float:
    """Area under the learning curve: the mean over tasks of the mean test accuracy after 0, 1, … 5 steps."""
    return fmean(fmean(curve) for curve in curves)


def memory_mb(numbers: int) -> float:
    """What is kept, as the paper counts it: four bytes for every parameter, statistic and stored value."""
    return 4 * numbers / 1e6


def tflops(operations: int) -> float:
    return operations / 1e12
