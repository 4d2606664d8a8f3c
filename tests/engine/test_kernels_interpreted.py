"""The Triton kernels without a GPU: Triton's interpreter runs them on the CPU, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

SCRIPT = """
import copy, torch
from ressl.engine.kernels import norm_act_twice
from ressl.nn import GroupedBatchNorm2d

def error(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm()).item()

last = {"memory_format": torch.channels_last}
for N, C, side, groups, residual, relu, twice in [
    (32, 48, 7, 2, True, True, True), (24, 64, 9, 3, False, True, False), (16, 8, 8, 8, True, False, False),
    (6, 40, 3, 1, False, False, True), (8, 16, 30, 2, False, True, True),
]:
    torch.manual_seed(0)
    norm = GroupedBatchNorm2d(C, groups)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    reference = copy.deepcopy(norm).double()
    x, r = (torch.randn(N, C, side, side).to(**last) for _ in range(2))
    a, ar = x.clone().requires_grad_(), r.clone().requires_grad_()
    b, br = x.double().requires_grad_(), r.double().requires_grad_()
    y, y2 = norm_act_twice(norm, a, ar if residual else None, relu)
    z = reference._explicit(b)
    z = z + br if residual else z
    z = z.relu() if relu else z
    w, w2 = torch.randn_like(y), torch.randn_like(y) * twice
    ((y * w).sum() + (y2 * w2).sum() if twice else (y * w).sum()).backward()
    (z * (w + w2).double()).sum().backward()
    found = {"y": error(y, z), "x": error(a.grad, b.grad), "weight": error(norm.weight.grad, reference.weight.grad),
             "bias": error(norm.bias.grad, reference.bias.grad),
             "mean": error(norm.running_mean, reference.running_mean),
             "var": error(norm.running_var, reference.running_var)}
    if residual:
        found["residual"] = error(ar.grad, br.grad)
    assert max(found.values()) < 1e-5, (N, C, side, groups, residual, relu, twice, found)
"""


def test_the_kernels_equal_separate_norms() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_sketch_tells_which_kernels_a_step_launches() -> None:
    from ressl.engine.ahead import launches
    from ressl.nn import build_backbone

    backbone = build_backbone("resnet18", "small", width=8, bn_groups=2)
    found = launches(backbone, (8, 3, 32, 32), torch.bfloat16)
    names = {launch.kernel.__name__ for launch in found}
    assert names == {
        "_moments",
        "_statistics",
        "_apply",
        "_backward_moments",
        "_backward_statistics",
        "_backward_apply",
    }
    sides = {launch.constants["R"] for launch in found if launch.kernel.__name__ == "_moments"}
    assert sides == {32 * 32, 16 * 16, 8 * 8, 4 * 4}
    assert all(not arg.is_meta for arg in backbone.state_dict().values())  # the network itself is as it was
