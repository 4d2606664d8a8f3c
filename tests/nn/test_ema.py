import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ressl.nn import EMATeacher


@settings(max_examples=20, deadline=None)
@given(m=st.floats(0.0, 1.0), steps=st.integers(1, 6), seed=st.integers(0, 1000))
def test_update_is_equation_6(m, steps, seed):
    torch.manual_seed(seed)
    student = nn.Linear(3, 2).double()
    teacher = EMATeacher(student, m)
    expected = [p.detach().clone() for p in student.parameters()]
    for _ in range(steps):
        with torch.no_grad():
            for p in student.parameters():
                p.add_(torch.randn_like(p))
        teacher.update(student)
        expected = [m * t + (1 - m) * s.detach() for t, s in zip(expected, student.parameters(), strict=True)]
    for mine, reference in zip(teacher.module.parameters(), expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)


def test_equal_weights_stay_bit_equal():
    student = nn.Linear(4, 4)
    teacher = EMATeacher(student, 0.99)
    teacher.update(student)
    assert torch.equal(teacher.module.weight, student.weight)


def test_buffers_are_the_teachers_own():
    student = nn.BatchNorm2d(3)
    teacher = EMATeacher(student, 0.5)
    student(torch.randn(8, 3, 2, 2) + 5)
    before = copy.deepcopy(teacher.module.running_mean)
    teacher.update(student)
    assert torch.equal(teacher.module.running_mean, before)


def test_no_gradient_and_no_trainable_parameter():
    teacher = EMATeacher(nn.Linear(2, 2), 0.9)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not teacher(torch.randn(1, 2, requires_grad=True)).requires_grad


def test_momentum_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="momentum"):
        EMATeacher(nn.Linear(2, 2), 1.5)
