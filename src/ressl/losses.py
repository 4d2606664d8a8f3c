"""The equations of the paper, and what several of the methods it compares with share, as pure functions on tensors.

Symbols are the paper's: ``z1`` is the teacher's embedding, ``z2`` the student's, ``Q`` the memory queue, ``p1`` and
``p2`` the relations, ``tau_t`` and ``tau_s`` their temperatures. All embeddings are unit vectors, so a dot product is
the paper's ``sim``; see :func:`ressl.nn.l2_normalize`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 1024  # of a long row: what the compiler reduces in one go, each number read once
LONG = 4 * PIECE


def similarity(z: Tensor, others: Tensor) -> Tensor:
    """Dot products of B x D with K x D (B x K), or with each row's own B x S x D (B x S).

    Of embeddings as they are (float32), whatever autocast says: a cosine rounded to bf16 is off by up to 1/256, which a
    temperature of 0.04 turns into a tenth of a nat. Sums are float32 everywhere, products as
    ``torch.get_float32_matmul_precision`` has them: our engine asks for "high" on a GPU, which is TF32, whose factors
    have 11 significant bits.
    """
    with torch.autocast(z.device.type, enabled=False):
        return z @ others.T if others.ndim == 2 else (others @ z[:, :, None])[:, :, 0]


def _long(rows: Tensor) -> bool:
    return rows.shape[-1] > LONG and rows.shape[-1] % PIECE == 0


def _pieces(rows: Tensor) -> Tensor:
    """B x K as B x K / PIECE x PIECE: a long row as it is would be read by few threads, and twice for its log_sum."""
    return rows.unflatten(-1, (-1, PIECE))


def _along(reduce: Callable[[Tensor, int], Tensor], rows: Tensor) -> Tensor:
    """``reduce`` each row of B x K to B, a long one by its pieces."""
    return reduce(reduce(_pieces(rows), -1) if _long(rows) else rows, -1)


def log_sum(logits: Tensor) -> Tensor:
    """log sum exp of each row: what its softmax divides by."""
    return _along(torch.logsumexp, logits)


def log_relation(z: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Logarithm of the relation of each embedding to the queue (equations 3 and 4).

    ``z`` is B x D and ``queue`` K x D, both of unit rows; the result is B x K, each row a log-distribution.
    """
    logits = similarity(z, queue) / temperature  # B x K
    return logits - log_sum(logits)[:, None]


def cross_entropy(log_p1: Tensor, logits: Tensor) -> Tensor:
    """H(p1, p2) of each row (the part of equation 5 that has a gradient), where p2 is the softmax of ``logits``.

    A log-distribution is such logits, too. From logits as they are the gradient is p2 - p1, with no sum over the queue.
    """
    return log_sum(logits) - _along(torch.sum, log_p1.exp() * logits)  # B


def entropy(log_p: Tensor) -> Tensor:
    """H(p) of each row, in nats; its ceiling is log K."""
    return -_along(torch.sum, log_p.exp() * log_p)


def highest(rows: Tensor) -> Tensor:
    """Where each row of B x K is highest: B, int64."""
    if not _long(rows):
        return rows.argmax(-1)
    best, place = _pieces(rows).max(-1)  # B x K / PIECE each
    piece = best.argmax(-1, keepdim=True)
    return (piece * PIECE + place.gather(-1, piece))[:, 0]


def relational(
    student: Tensor,
    teacher: Tensor,
    queue: Tensor,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.04,
) -> Tensor:
    """The relational consistency loss (equation 5): the batch mean of H(p1, p2).

    Args:
        student: B x D unit vectors z2 of the strongly augmented view; the only argument with a gradient.
        teacher: B x D unit vectors z1 of the weakly augmented view.
        queue: K x D unit vectors of past samples.
        student_temperature: tau_s.
        teacher_temperature: tau_t; smaller than tau_s, so that the target is the sharper of the two.

    >>> from torch.nn.functional import normalize
    >>> z1, z2, Q = (normalize(torch.eye(n, 4), dim=1) for n in (2, 2, 4))
    >>> round(relational(z2, z1, Q, 0.1, 0.05).item(), 4)
    0.0001
    """
    with torch.no_grad():
        log_p1 = log_relation(teacher, queue, teacher_temperature)
    return cross_entropy(log_p1, similarity(student, queue.detach()) / student_temperature).mean()


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """The contrastive loss of each query (equation 1): its key against negatives, K x D for all or B x S x D each."""
    positive = (query * key).sum(dim=-1, keepdim=True)  # B x 1
    logits = torch.cat((positive, similarity(query, negatives)), dim=1) / temperature  # B x (1 + K)
    return -F.log_softmax(logits, dim=1)[:, 0]  # B


def spread(z: Tensor) -> Tensor:
    """How far unit vectors point in different directions: 1 - |mean|, near 1 when spread, 0 when all are one."""
    return 1.0 - z.mean(dim=0).norm()
