"""Low-shot linear SVMs on frozen features (the paper's Table 9).

One SVM per class with squared hinge loss, as LIBLINEAR's and scikit-learn's ``LinearSVC`` define it. All classes are
solved together by Newton's method with conjugate gradients, so that the work is matrix products on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ressl.errors import ResslError
from ressl.evaluation.draws import first_of_each, one_hot
from ressl.evaluation.intervals import interval
from ressl.evaluation.precision import mean_average_precision


@dataclass(frozen=True)
class SvmProtocol:
    """K labelled pictures per class, several draws, and once all of them."""

    shots: tuple[int, ...] = (16, 32, 64)
    full: bool = True  # also with every label
    draws: int = 5
    cost: float = 1.0  # C, for features of unit length
    positive_weight: float = 2.0  # a positive's cost is so many times a negative's

    def check(self) -> None:
        if self.draws < 1 or self.cost <= 0 or self.positive_weight <= 0 or min(self.shots, default=1) < 1:
            raise ResslError("an SVM evaluation needs shots and draws of at least 1 and a cost above 0")
        if not self.shots and not self.full:
            raise ResslError("an SVM evaluation needs shots, or full=true")


@torch.no_grad()
def fit_svm(
    x: Tensor, y: Tensor, cost: Tensor, tolerance: float = 1e-6, iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """(weights D x C, biases C) of C independent SVMs that minimise |w|^2 / 2 + sum_i c_i max(0, 1 - y_i w x_i)^2.

    ``x`` is N x D, ``y`` N x C of +1 and -1, ``cost`` N x C (0 leaves a sample out). The bias is one more feature that
    is always 1, so it is regularised too, as LIBLINEAR has it.
    """
    X = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64, device=x.device)], 1)  # N x (D + 1)
    y, cost = y.double(), cost.double()
    w = torch.zeros(X.shape[1], y.shape[1], dtype=torch.float64, device=x.device)

    def value(w: Tensor) -> tuple[Tensor, Tensor]:
        slack = (1 - y * (X @ w)).clamp_min(0)  # N x C
        return 0.5 * (w * w).sum(0) + (cost * slack * slack).sum(0), slack

    f, slack = value(w)
    first = None
    for _ in range(iterations):
        g = w - 2 * X.T @ (cost * y * slack)
        size = g.norm(dim=0)
        first = size if first is None else first
        if bool((size <= tolerance * first.clamp_min(1e-12)).all()):
            break
        curvature = cost * (slack > 0)
        d = _conjugate_gradients(lambda v, c=curvature: v + 2 * X.T @ (c * (X @ v)), -g)  # type: ignore[misc]
        # Halve the step of each class until its value falls enough (Armijo).
        slope, step = (g * d).sum(0), torch.ones_like(f)
        for _ in range(30):
            new, new_slack = value(w + step * d)
            short = new > f + 1e-4 * step * slope
            if not bool(short.any()):
                break
            step = torch.where(short, step / 2, step)
        w = w + step * d
        f, slack = new, new_slack
    return w[:-1], w[-1]


def _conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int = 250) -> Tensor:
    """The solution of A x = b for each column, with A given by its products."""
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), (r * r).sum(0)
    target = 1e-4 * rr  # a hundredth of the residual's length: Newton's method corrects the rest
    for _ in range(iterations):
        if bool((rr <= target).all()):
            break
        Ap = product(p)
        alpha = torch.where(rr > 0, rr / (p * Ap).sum(0).clamp_min(1e-300), 0)
        x, r = x + alpha * p, r - alpha * Ap
        new = (r * r).sum(0)
        p, rr = r + torch.where(rr > 0, new / rr.clamp_min(1e-300), 0) * p, new
    return x


def svm_evaluation(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    protocol: SvmProtocol,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Accuracy for N class numbers, VOC07's mAP for N x C labels of 1, -1 and 0 (difficult); mean over the draws."""
    protocol.check()
    several = train[1].ndim == 2
    classes = train[1].shape[1] if several else int(max(train[1].max(), test[1].max())) + 1
    as_targets = lambda labels: labels if several else 2 * one_hot(labels, classes).long() - 1
    x, held = F.normalize(train[0], dim=1), F.normalize(test[0], dim=1)
    targets, truth = as_targets(train[1]), as_targets(test[1])
    sizes = (targets > 0).sum(0)
    smallest, largest = int(sizes.min()), int(sizes.max())
    # Where no class has more than K, every draw is the same, and a spread of 0 would say what it does not know.
    few = ((k, protocol.draws if k < largest else 1) for k in protocol.shots)
    wanted = [*few, *([(None, 1)] if protocol.full else [])]
    rows, done, total = [], 0, sum(draws for _, draws in wanted)
    for shots, draws in wanted:
        values = []
        for draw in range(draws):
            scores = _scores(x, targets, held, shots, protocol, seed, draw)
            if several:
                values.append(mean_average_precision(scores, truth))
            else:
                values.append(100.0 * (scores.argmax(1) == test[1]).double().mean().item())
            done += 1
            if progress is not None:
                progress(done, total)
        row: dict[str, Any] = {"shots": shots, **interval(values).as_dict()}
        if shots is not None and smallest < shots:
            row["note"] = f"a class has only {smallest}"
        rows.append(row)
    return {"measure": "mAP" if several else "top-1", "by_shots": rows}


def _scores(
    x: Tensor, targets: Tensor, held: Tensor, shots: int | None, protocol: SvmProtocol, seed: int, draw: int
) -> Tensor:
    """Test scores M x C of the SVMs of one draw.

    The positives of a class are the K drawn for it. Its negatives are what was drawn for other classes and does not
    show it. A picture that shows the class but was drawn for another only is left out, else K would not be K.
    """
    present = targets > 0
    drawn = present if shots is None else first_of_each(present, shots, seed, draw)  # N x C
    some = torch.ones(len(x), dtype=torch.bool, device=x.device) if shots is None else drawn.any(1)
    positive, negative = drawn[some], targets[some] < 0
    cost = protocol.cost * (protocol.positive_weight * positive.double() + negative.double())
    w, b = fit_svm(x[some], torch.where(positive, 1.0, -1.0), cost)
    return held.double() @ w + b
