"""ReSSL's forward against the equations written out, its gradients, and what follows a step."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ressl.methods import METHODS, Method
from ressl.methods.ressl import ReSSL, spread
from ressl.nn import build_backbone


def make(groups: int = 2, **options: Any) -> ReSSL:
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "medium", 4, groups)
    full = {"hidden_dim": 16, "output_dim": 8, "queue_size": 12, "teacher_momentum": 0.9} | options
    return ReSSL(backbone, **full).train()


def views(count: int = 2, n: int = 8) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(n, 3, 16, 16, generator=draw) for _ in range(count)]


def test_the_loss_is_the_paper_s_and_logs_are_what_they_say() -> None:
    method = make(student_temperature=0.1, teacher_temperature=0.04).eval()  # eval: no shuffle can matter
    twin = copy.deepcopy(method)
    weak, strong = views()
    output = method([weak, strong])
    z2 = F.normalize(twin.head(twin.backbone(strong)), dim=1).double()
    z1 = F.normalize(twin.teacher.module(weak), dim=1).double()
    Q = twin.queue.keys.double()
    p1, p2 = F.softmax(z1 @ Q.T / 0.04, 1), F.softmax(z2 @ Q.T / 0.1, 1)
    assert output.loss.item() == pytest.approx(F.cross_entropy(z2 @ Q.T / 0.1, p1).item(), rel=1e-4)
    assert output.logs["teacher_entropy"].item() == pytest.approx(-(p1 * p1.log()).sum(1).mean().item(), rel=1e-4)
    assert output.logs["agreement"].item() == pytest.approx((p1.argmax(1) == p2.argmax(1)).double().mean().item())
    assert output.logs["spread"].item() == pytest.approx(1 - z2.mean(0).norm().item(), abs=1e-5)
    assert output.carry is not None
    torch.testing.assert_close(output.carry.double(), z1, rtol=1e-4, atol=1e-5)


def test_several_student_views_are_averaged_against_one_target() -> None:
    method = make().eval()
    weak, a, b, c = views(4)
    together = method([weak, a, b, c]).loss
    alone = torch.stack([method([weak, view]).loss for view in (a, b, c)])
    torch.testing.assert_close(together, alone.mean())


def test_student_views_may_differ_in_size() -> None:
    method = make()
    weak, strong = views()
    small = F.interpolate(strong, 12)
    method([weak, strong, small]).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.backbone.parameters())


def test_only_the_student_has_a_gradient() -> None:
    method = make()
    method(views()).loss.backward()
    for name, p in method.named_parameters():
        if name.startswith("teacher."):
            assert p.grad is None
            assert not p.requires_grad
        else:
            assert p.grad is not None
            assert p.grad.abs().sum() > 0, name


def test_teacher_and_student_start_equal_and_the_teacher_follows() -> None:
    method = make()
    student = [*method.backbone.parameters(), *method.head.parameters()]
    teacher = list(method.teacher.module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(student, teacher, strict=True))
    with torch.no_grad():
        for p in student:
            p.add_(1.0)
    output = method(views())
    keys, position = method.queue.keys.clone(), int(method.queue.position)
    method.after_step(output.carry)
    for s, t in zip(student, teacher, strict=True):
        torch.testing.assert_close(t, s - 0.9, rtol=1e-5, atol=1e-5)  # a tenth of the way
    assert position == 0
    assert torch.equal(method.queue.keys[:8], output.carry)
    assert torch.equal(method.queue.keys[8:], keys[8:])


def test_the_loss_is_taken_before_the_batch_is_enqueued() -> None:
    method = make()
    before = method.queue.keys.clone()
    method(views())
    assert torch.equal(method.queue.keys, before)


def test_the_target_is_shuffled_inside_and_comes_back_in_order() -> None:
    """In train mode the groups of batch norm differ from call to call, so values do too, but rows stay in place."""
    method = make(groups=4)
    weak = views(1, 16)[0]
    first, second = method.target(weak), method.target(weak)
    assert not torch.equal(first, second)
    method.eval()
    plain = F.normalize(method.teacher.module(weak), dim=1)
    torch.testing.assert_close(method.target(weak), plain, rtol=1e-4, atol=1e-5)


def test_embeddings_are_unit_vectors_also_under_autocast() -> None:
    method = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = method(views())
    assert output.carry is not None
    assert output.carry.dtype == torch.float32
    torch.testing.assert_close(output.carry.norm(dim=1), torch.ones(8), rtol=1e-5, atol=1e-5)
    assert output.loss.dtype == torch.float32


def test_its_whole_state_is_in_the_state_dict() -> None:
    """A twin from the state dict goes on to the bit, shuffle and queue included."""
    method, twin = make(), make(queue_size=12)
    optimise = lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1)

    def step(m: Method, optimiser: torch.optim.Optimizer) -> torch.Tensor:
        output = m(views())
        output.loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        m.after_step(output.carry)
        return output.loss

    for _ in range(2):
        step(method, optimise(method))
    twin.load_state_dict(method.state_dict())
    for _ in range(2):
        assert torch.equal(step(method, optimise(method)), step(twin, optimise(twin)))
    assert all(torch.equal(a, b) for a, b in zip(method.state_dict().values(), twin.state_dict().values(), strict=True))


def test_spread_is_one_for_opposite_and_zero_for_equal_vectors() -> None:
    e = torch.eye(4)
    assert spread(torch.cat([e, -e])).item() == pytest.approx(1.0)
    assert spread(e[:1].expand(5, -1)).item() == pytest.approx(0.0)
    assert spread(e[:2]).item() == pytest.approx(1 - math.sqrt(0.5))


def test_the_table_holds_it() -> None:
    assert METHODS["ressl"] is ReSSL
    assert all(issubclass(kind, Method) and issubclass(kind, nn.Module) for kind in METHODS.values())
