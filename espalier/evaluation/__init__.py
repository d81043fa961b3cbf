"""Accuracies and the paper's metrics."""

from espalier.evaluation.accuracy import accuracy, accuracy_on
from espalier.evaluation.metrics import average_accuracy, forgetting, lca, memory_mb, tflops, transfer
from espalier.evaluation.predict import pictures, predict
from espalier.evaluation.predictor import network_of

__all__ = [
    "accuracy",
    "accuracy_on",
    "average_accuracy",
    "forgetting",
    "lca",
    "memory_mb",
    "network_of",
    "pictures",
    "predict",
    "tflops",
    "transfer",
]
