"""Our SVM, mAP and intervals against scikit-learn, scipy and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import precision_recall_curve
from sklearn.svm import LinearSVC

from ressl.errors import ResslError
from ressl.evaluation.draws import balanced_fraction, first_of_each
from ressl.evaluation.intervals import interval
from ressl.evaluation.precision import average_precision, mean_average_precision
from ressl.evaluation.svm import SvmProtocol, fit_svm, svm_evaluation


def blobs(n: int, d: int, classes: int, seed: int, noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    return centres[labels] + noise * torch.randn(n, d, generator=torch.Generator().manual_seed(seed)), labels


@pytest.mark.parametrize(("n", "d", "cost"), [(60, 100, 1.0), (300, 20, 1.0), (300, 20, 50.0), (40, 5, 0.01)])
def test_weights_are_scikit_learn_s(n: int, d: int, cost: float) -> None:
    x, labels = blobs(n, d, 4, 0, noise=2.0)
    x = F.normalize(x, dim=1)
    y = 2.0 * (labels[:, None] == torch.arange(4)) - 1
    w, b = fit_svm(x, y, cost * torch.where(y > 0, 2.0, 1.0))
    for c in range(4):
        theirs = LinearSVC(C=cost, class_weight={1: 2, -1: 1}, tol=1e-8, max_iter=500_000, dual=True)
        theirs.fit(x.double().numpy(), y[:, c].numpy())
        np.testing.assert_allclose(w[:, c], theirs.coef_[0], atol=2e-3)
        np.testing.assert_allclose(b[c], theirs.intercept_[0], atol=2e-3)


def test_a_sample_without_cost_is_not_there() -> None:
    x, labels = blobs(50, 8, 2, 0)
    y = 2.0 * (labels[:, None] == torch.arange(2)) - 1
    cost = torch.ones_like(y)
    cost[::5] = 0
    some = torch.arange(50) % 5 != 0
    torch.testing.assert_close(fit_svm(x, y, cost)[0], fit_svm(x[some], y[some], cost[some])[0], atol=1e-6, rtol=1e-4)


def naive_ap(scores: np.ndarray, truth: np.ndarray) -> float:
    """The challenge's definition by scikit-learn's curve: difficult ones out, then 11 recalls."""
    known = truth != 0
    precision, recall, _ = precision_recall_curve(truth[known] > 0, scores[known])
    precision, recall = precision[:-1], recall[:-1]  # its last point, 1 at recall 0, is no picture's
    return 100 * float(np.mean([precision[recall >= i / 10 - 1e-12].max() for i in range(11)]))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 60), seed=st.integers(0, 10**6), difficult=st.floats(0, 0.5))
def test_average_precision_is_scikit_learn_s_curve_at_eleven_recalls(n: int, seed: int, difficult: float) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.permutation(n).astype(np.float64)  # no ties, whose order the definition leaves open
    truth = np.where(draw.random(n) < 0.3, 1, -1)
    truth[draw.random(n) < difficult] = 0
    truth[draw.integers(n)] = 1
    ours = average_precision(torch.from_numpy(scores), torch.from_numpy(truth))
    assert ours == pytest.approx(naive_ap(scores, truth), abs=1e-9)


def test_difficult_pictures_count_neither_for_nor_against() -> None:
    scores, truth = torch.tensor([5.0, 4.0, 3.0, 2.0]), torch.tensor([0, 1, 0, -1])
    assert average_precision(scores, truth) == 100.0
    assert average_precision(scores, torch.tensor([-1, 1, 0, -1])) == pytest.approx(50.0)


def test_a_class_that_nobody_shows_is_left_out_of_the_mean() -> None:
    scores = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    assert mean_average_precision(scores, torch.tensor([[1, -1], [-1, -1]])) == 100.0


def test_draws_have_k_of_each_class_and_grow() -> None:
    labels = torch.arange(200) % 5
    member = labels[:, None] == torch.arange(5)
    few, more = first_of_each(member, 4, 0, 0), first_of_each(member, 8, 0, 0)
    assert few.sum(0).tolist() == [4] * 5
    assert more.sum(0).tolist() == [8] * 5
    assert bool((more | ~few).all())  # the smaller draw is part of the larger
    assert not torch.equal(few, first_of_each(member, 4, 0, 1))
    assert not bool((few & ~member).any())
    assert len(balanced_fraction(labels, 0.1, 0, 0)) == 20
    assert len(balanced_fraction(labels, 1e-6, 0, 0)) == 5  # at least one each


def test_the_mean_over_the_draws_is_a_plain_loop_with_scikit_learn() -> None:
    train, test = blobs(120, 12, 3, 0, noise=3.0), blobs(90, 12, 3, 1, noise=3.0)
    found = svm_evaluation(train, test, protocol=SvmProtocol(shots=(5,), draws=3, full=False), seed=7)
    member = train[1][:, None] == torch.arange(3)
    x, held = (F.normalize(f, dim=1).double().numpy() for f in (train[0], test[0]))
    values = []
    for draw in range(3):
        some = first_of_each(member, 5, 7, draw).any(1).numpy()
        scores = []
        for c in range(3):
            svm = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, tol=1e-8, max_iter=100_000)
            svm.fit(x[some], np.where(train[1].numpy()[some] == c, 1, -1))
            scores.append(svm.decision_function(held))
        values.append(100 * float((np.argmax(scores, 0) == test[1].numpy()).mean()))
    row = found["by_shots"][0]
    assert row["values"] == pytest.approx(values, abs=1.2)  # a picture on the border may fall either way
    assert row["mean"] == pytest.approx(np.mean(row["values"]))


def test_draws_that_are_all_the_same_have_no_spread() -> None:
    """Of classes with 6 and 9 pictures: with 8 each, draws differ by the larger one; with 9 they cannot."""
    labels = torch.tensor([0] * 6 + [1] * 9)
    x = torch.randn(15, 8, generator=torch.Generator().manual_seed(0))
    found = svm_evaluation((x, labels), (x, labels), protocol=SvmProtocol(shots=(8, 9, 50), draws=3))["by_shots"]
    assert [(row["shots"], row["n"], row["half"] is None) for row in found] == [
        (8, 3, False),
        (9, 1, True),
        (50, 1, True),
        (None, 1, True),
    ]
    assert found[1]["mean"] == found[2]["mean"] == found[3]["mean"]
    assert [row.get("note") for row in found] == [*["a class has only 6"] * 3, None]


def test_several_labels_are_measured_by_map() -> None:
    x, labels = blobs(200, 16, 4, 0, noise=0.2)
    y, second = blobs(200, 16, 4, 1, noise=0.2)
    targets = 2 * ((labels[:, None] == torch.arange(4)) | (second.roll(1)[:, None] == torch.arange(4))).long() - 1
    targets[::17, 0] = 0
    features = x + y.roll(1, 0)
    found = svm_evaluation((features, targets), (features, targets), protocol=SvmProtocol(shots=(8,), draws=2))
    assert found["measure"] == "mAP"
    assert found["by_shots"][1]["mean"] > 99.0  # separable, with all labels
    assert 60 < found["by_shots"][0]["mean"] <= 100


def test_settings_that_make_no_sense_are_said() -> None:
    data = blobs(20, 4, 2, 0)
    with pytest.raises(ResslError, match="shots and draws"):
        svm_evaluation(data, data, protocol=SvmProtocol(draws=0))


def test_the_interval_is_student_s() -> None:
    values = [88.1, 87.5, 88.9, 88.0, 87.2]
    found = interval(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert found.half is not None
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert found.std == pytest.approx(np.std(values, ddof=1))
    assert interval([3.0]).half is None
    assert not math.isnan(interval([2.0, 2.0]).half or 0.0)
