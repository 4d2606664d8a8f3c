"""The equations against a naive float64 reference that follows the paper symbol by symbol."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ressl import losses


def unit(n: int, d: int, seed: int) -> torch.Tensor:
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


def naive(z2, z1, Q, tau_s, tau_t):  # type: ignore[no-untyped-def]
    """Equations 3 to 5 with loops, in Python's own floats."""
    total = 0.0
    for b in range(len(z1)):
        sim1 = [sum(float(a) * float(c) for a, c in zip(z1[b], q, strict=True)) for q in Q]
        sim2 = [sum(float(a) * float(c) for a, c in zip(z2[b], q, strict=True)) for q in Q]
        p1 = [math.exp(s / tau_t) for s in sim1]
        p2 = [math.exp(s / tau_s) for s in sim2]
        p1 = [p / sum(p1) for p in p1]
        p2 = [p / sum(p2) for p in p2]
        total += -sum(a * math.log(c) for a, c in zip(p1, p2, strict=True))
    return total / len(z1)


@settings(max_examples=25, deadline=None)
@given(
    b=st.integers(1, 5),
    k=st.integers(1, 9),
    d=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    tau_s=st.floats(0.05, 0.5),
    tau_t=st.floats(0.02, 0.5),
)
def test_relational_equals_the_naive_reference(b, k, d, seed, tau_s, tau_t):
    z2, z1, Q = unit(b, d, seed), unit(b, d, seed + 1), unit(k, d, seed + 2)
    ours = losses.relational(z2, z1, Q, tau_s, tau_t).item()
    assert ours == pytest.approx(naive(z2, z1, Q, tau_s, tau_t), rel=1e-10, abs=1e-12)


def test_gradient_reaches_the_student_alone_and_is_right():
    z2, z1, Q = (x.requires_grad_() for x in (unit(3, 5, 0), unit(3, 5, 1), unit(7, 5, 2)))
    losses.relational(z2, z1, Q).backward()
    assert z1.grad is None
    assert Q.grad is None
    # By hand: dL/dz2 = (p2 - p1) Q / (tau_s B).
    p1 = torch.softmax(z1 @ Q.T / 0.04, 1)
    p2 = torch.softmax(z2 @ Q.T / 0.1, 1)
    torch.testing.assert_close(z2.grad, ((p2 - p1) @ Q / 0.1 / 3).detach())


def test_the_loss_is_the_divergence_plus_the_targets_entropy():
    z2, z1, Q = unit(4, 6, 3), unit(4, 6, 4), unit(11, 6, 5)
    log_p1, log_p2 = losses.log_relation(z1, Q, 0.04), losses.log_relation(z2, Q, 0.1)
    kl = torch.nn.functional.kl_div(log_p2, log_p1, log_target=True, reduction="batchmean")
    assert losses.relational(z2, z1, Q).item() == pytest.approx((kl + losses.entropy(log_p1).mean()).item())


@pytest.mark.parametrize("k", [losses.LONG, 9 * losses.PIECE, 9 * losses.PIECE + 1])
def test_long_rows_are_summed_in_pieces_to_the_same_numbers(k):
    z2, z1, Q = unit(2, 8, 6).requires_grad_(), unit(2, 8, 7), unit(k, 8, 8)
    loss = losses.relational(z2, z1, Q)
    p1, log_p2 = torch.softmax(z1 @ Q.T / 0.04, 1), torch.log_softmax(z2 @ Q.T / 0.1, 1)
    assert loss.item() == pytest.approx(-(p1 * log_p2).sum(1).mean().item(), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, z2)
    torch.testing.assert_close(gradient, (log_p2.exp() - p1) @ Q / 0.1 / 2)
    log_p1 = losses.log_relation(z1, Q, 0.04)
    assert log_p1.exp().sum(1).tolist() == pytest.approx([1.0, 1.0])
    assert losses.entropy(log_p1).tolist() == pytest.approx((-(p1 * p1.log()).sum(1)).tolist())
    assert losses.highest(p1).tolist() == p1.argmax(1).tolist()
    assert losses.highest(-log_p2).tolist() == log_p2.argmin(1).tolist()


def test_entropy_reaches_its_ceiling_when_all_keys_are_alike():
    Q = unit(1, 6, 0).repeat(32, 1)
    assert losses.entropy(losses.log_relation(unit(2, 6, 1), Q, 0.04)).tolist() == pytest.approx([math.log(32)] * 2)


def test_similarities_are_not_rounded_to_bf16_under_autocast():
    z2, z1, Q = unit(8, 64, 0).float(), unit(8, 64, 1).float(), unit(128, 64, 2).float()
    exact = losses.relational(z2, z1, Q)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(losses.relational(z2, z1, Q), exact)
