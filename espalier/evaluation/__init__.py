"""Accuracies and the paper's metrics."""

from espalier.evaluation.accuracy import accuracy
from espalier.evaluation.metrics import average_accuracy, forgetting, lca, memory_mb, tflops, transfer
from espalier.evaluation.predict import predict

__all__ = ["accuracy", "average_accuracy", "forgetting", "lca", "memory_mb", "predict", "tflops", "transfer"]
