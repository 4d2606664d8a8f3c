"""Frozen features in, numbers out."""

from ressl.evaluation.cache import FeatureCache, fingerprint
from ressl.evaluation.classes import confusion, mistaken, per_class
from ressl.evaluation.features import extract, frozen
from ressl.evaluation.finetune import FinetuneProtocol, finetune_evaluation
from ressl.evaluation.geometry import alignment, effective_rank, uniformity
from ressl.evaluation.intervals import Interval, interval
from ressl.evaluation.knn import knn_accuracy, knn_predict, knn_sweep
from ressl.evaluation.linear import COSINE, PROTOCOLS, STEP, LinearProtocol, LinearResult, linear_evaluation
from ressl.evaluation.neighbours import nearest
from ressl.evaluation.precision import average_precision, mean_average_precision
from ressl.evaluation.projection import tsne
from ressl.evaluation.svm import SvmProtocol, fit_svm, svm_evaluation

__all__ = [
    "COSINE",
    "PROTOCOLS",
    "STEP",
    "FeatureCache",
    "FinetuneProtocol",
    "Interval",
    "LinearProtocol",
    "LinearResult",
    "SvmProtocol",
    "alignment",
    "average_precision",
    "confusion",
    "effective_rank",
    "extract",
    "finetune_evaluation",
    "fingerprint",
    "fit_svm",
    "frozen",
    "interval",
    "knn_accuracy",
    "knn_predict",
    "knn_sweep",
    "linear_evaluation",
    "mean_average_precision",
    "mistaken",
    "nearest",
    "per_class",
    "svm_evaluation",
    "tsne",
    "uniformity",
]
