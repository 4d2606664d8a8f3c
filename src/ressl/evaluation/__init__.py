"""Frozen features in, numbers out."""

from ressl.evaluation.features import extract, frozen
from ressl.evaluation.knn import knn_accuracy, knn_predict
from ressl.evaluation.linear import COSINE, PROTOCOLS, STEP, LinearProtocol, LinearResult, linear_evaluation
from ressl.evaluation.neighbours import nearest

__all__ = [
    "COSINE",
    "PROTOCOLS",
    "STEP",
    "LinearProtocol",
    "LinearResult",
    "extract",
    "frozen",
    "knn_accuracy",
    "knn_predict",
    "linear_evaluation",
    "nearest",
]
