"""The fused norm without a GPU: Triton's interpreter runs the kernels on the CPU, in a process of its own."""

import pytest
import torch

from ressl.engine.ahead import sketched
from ressl.nn import build_backbone

triton = pytest.importorskip("triton")

CASES = """
import copy, sys, torch
from ressl.engine import kernels
from ressl.engine.fusion import fuse
from ressl.engine.kernels import norm_act, norm_act_twice
from ressl.nn import GroupedBatchNorm2d, build_backbone

torch.set_num_threads(1)
last = {"memory_format": torch.channels_last}
cases = [(8, 16, 4, 2, True, True), (8, 24, 3, 4, False, True), (6, 8, 5, 1, True, False), (6, 40, 7, 3, True, True)]
for number, (N, C, side, groups, residual, relu) in enumerate(cases * 2):
    kernels.LARGE = 0 if number < len(cases) else 1 << 23  # both ways to reduce, with rows loaded ahead and without
    torch.manual_seed(0)
    norm = GroupedBatchNorm2d(C, groups)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    plain = copy.deepcopy(norm)
    x, r = torch.randn(N, C, side, side) * 2 + 1, torch.randn(N, C, side, side)
    a, ar, b, br = (t.clone().to(**last).requires_grad_() for t in (x, r, x, r))
    y = norm_act(norm, a, ar if residual else None, relu)
    z = plain._explicit(b)
    z = z + br if residual else z
    z = z.relu() if relu else z
    w = torch.randn_like(y)
    y.backward(w)
    z.backward(w)
    pairs = [(y, z), (a.grad, b.grad), (norm.weight.grad, plain.weight.grad), (norm.bias.grad, plain.bias.grad)]
    pairs += [(norm.running_mean, plain.running_mean), (norm.running_var, plain.running_var)]
    pairs += [(ar.grad, br.grad)] if residual else []
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)

# Not a number stays none, here and in the pool: a teacher has no backward in which it would show.
from ressl.engine.pooling import can_pool, norm_pool_twice

sick = torch.randn(4, 8, 6, 6).to(**last)
sick[1, 2, 3, 3] = float("nan")
for made in (norm_act(GroupedBatchNorm2d(8, 2), sick), norm_pool_twice(GroupedBatchNorm2d(8, 2), sick)[0]):
    assert made.isnan().any(dim=(0, 2, 3)).tolist() == [channel == 2 for channel in range(8)]

# Two users of one result: the gradients meet inside the kernel.
for residual in (True, False):
    norm, plain = GroupedBatchNorm2d(8, 2), GroupedBatchNorm2d(8, 2)
    x, r, w, v = (torch.randn(6, 8, 4, 4).to(**last) for _ in range(4))
    a, ar, b, br = (t.clone().requires_grad_() for t in (x, r, x, r))
    one, two = norm_act_twice(norm, a, ar if residual else None)
    (one * w + two.sin() * v).sum().backward()
    z = plain._explicit(b)
    z = (z + br if residual else z).relu()
    (z * w + z.sin() * v).sum().backward()
    for ours, theirs in [(a.grad, b.grad), (norm.weight.grad, plain.weight.grad), (ar.grad, br.grad)][: 2 + residual]:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)

# The stem's norm with its pool, one user and two.
pool = torch.nn.MaxPool2d(3, 2, 1)
assert can_pool(pool) and not can_pool(torch.nn.MaxPool2d(2, 2)) and not can_pool(torch.nn.Identity())
for number, (N, C, side, groups, two) in enumerate([(4, 8, 6, 2, True), (6, 24, 7, 3, False), (4, 70, 9, 1, True)] * 2):
    kernels.LARGE = 0 if number < 3 else 1 << 23
    torch.manual_seed(number)
    norm = GroupedBatchNorm2d(C, groups)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    plain = copy.deepcopy(norm)
    x = torch.randn(N, C, side, side + 1).to(**last)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, other = norm_pool_twice(norm, a)
    z = pool(plain._explicit(b).relu())
    v, w = torch.randn_like(z), torch.randn_like(z)
    ((one * v).sum() + (other * w).sum() if two else (one * v).sum()).backward()
    (z * (v + w if two else v)).sum().backward()
    pairs = [(one, z), (a.grad, b.grad), (norm.weight.grad, plain.weight.grad), (norm.bias.grad, plain.bias.grad)]
    for ours, theirs in [*pairs, (norm.running_mean, plain.running_mean), (norm.running_var, plain.running_var)]:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)

for stem in ("small", "imagenet"):
    torch.manual_seed(0)
    plain = build_backbone("resnet10", stem, width=4, bn_groups=2).to(**last)
    fused = copy.deepcopy(plain)
    assert fuse(fused) == 1
    x = torch.randn(8, 3, 16, 16).to(**last)
    for mode in (True, False):  # in training by our kernels, in eval plainly
        torch.testing.assert_close(fused.train(mode)(x), plain.train(mode)(x), rtol=1e-4, atol=1e-4)
    fused.train()(x).sum().backward()
    plain.train()(x).sum().backward()
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() < 1e-3 * theirs.grad.norm() + 1e-4, stem

# Two pixels at once: the weights of both ways, and a network that takes them.
from ressl.engine import pairing, turning

weight = torch.randn(8, 8, 3, 3)
for ours, theirs in zip(turning.both_ways(weight), pairing.both_ways(weight), strict=True):
    assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
torch.manual_seed(0)
plain = build_backbone("resnet10", "small", width=64, bn_groups=2).to(**last).bfloat16()
fused, x = copy.deepcopy(plain), torch.randn(4, 3, 8, 8).to(**last).bfloat16()
fuse(fused)
fuse(plain, paired=False)
taken, both_ways = [], turning.both_ways
turning.both_ways = lambda weight: taken.append(weight) or both_ways(weight)
for net in (fused, plain):
    net.train()(x).float().square().sum().backward()
assert len(taken) == 2  # the convolutions of the first block
for name in ("layer1.0.conv1", "layer1.0.conv2", "conv1"):
    ours, theirs = (net.get_submodule(name).weight.grad.float() for net in (fused, plain))
    assert (ours - theirs).norm() < 0.02 * theirs.norm(), name
turning.both_ways = both_ways

# The update: gradient norm, SGD and moving average against torch's own, and a step that is bad.
from ressl.engine.optimisers import build_sgd, gradients
from ressl.engine.updating import Update, can_update
from ressl.nn.ema import EMATeacher

for nesterov in (False, True):
    torch.manual_seed(0)
    ours = build_backbone("resnet10", "small", width=4, bn_groups=2).to(**last)
    theirs = copy.deepcopy(ours)
    alone = [torch.nn.Parameter(torch.randn(5000)) for _ in range(2)]  # followed by nobody, and more than one block
    alone[1].data.copy_(alone[0].data)
    sides = []
    for net, own in ((ours, alone[0]), (theirs, alone[1])):
        whole = torch.nn.ParameterList([*net.parameters(), own])
        optimiser = build_sgd(whole, momentum=0.9, weight_decay=5e-4, decay_norm_and_bias=False, nesterov=nesterov)
        sides.append((net, whole, optimiser, EMATeacher(net, 0.9)))
    assert can_update(sides[0][2])
    low = {}  # as a bf16 copy has them
    update = Update(sides[0][2], [sides[0][3]], lambda p: low.get(p, p.grad), low.clear)
    for number in range(4):
        bad = torch.tensor(float(number == 2))
        norms = []
        for net, whole, optimiser, teacher in sides:
            torch.manual_seed(number)
            for p in whole:
                p.grad = torch.randn_like(p).bfloat16().float()
            if net is ours and number == 3:
                low |= {p: p.grad.bfloat16() for p in whole if p.ndim == 4}
            for group in optimiser.param_groups:
                group["lr"].fill_(0.1)
            optimiser.found_inf = bad
            teacher.kept.fill_(number != 2)
            if net is ours:
                norms.append(update.norm())
                update.step()
            else:
                norms.append(torch.stack(torch._foreach_norm(gradients(optimiser))).norm())
                optimiser.step()
            teacher.update(net)
        torch.testing.assert_close(*norms)
    for mine, other in zip((ours, sides[0][3], alone[0]), (theirs, sides[1][3], alone[1]), strict=True):
        for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x.parameters() for x in (mine, other)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(sides[0][1], sides[1][1], strict=True):
        momenta = (s[2].state[p]["momentum_buffer"] for s, p in zip(sides, (a, b), strict=True))
        torch.testing.assert_close(*momenta, rtol=1e-5, atol=1e-6)
print("all agree")
"""


@pytest.mark.skipif(
    tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7),
    reason="the interpreter of this Triton cannot loop to a number that a program computes",
)
def test_the_fused_norm_and_a_fused_network_equal_the_plain_ones(interpret):
    interpret(CASES)


def test_a_sketch_tells_which_kernels_a_step_launches() -> None:
    backbone = build_backbone("resnet18", "small", width=12, bn_groups=2)
    found, _ = sketched(backbone, (8, 3, 32, 32), torch.bfloat16)
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
    both, _ = sketched(backbone, (8, 3, 32, 32), torch.bfloat16, calls=((32, 1), (32, 2)))
    assert {launch.constants["G"] for launch in both if launch.kernel.__name__ == "_moments"} == {2, 4}
    crops, _ = sketched(backbone, (8, 3, 32, 32), torch.bfloat16, calls=((32, 1), (16, 1)))
    sides = {launch.constants["R"] for launch in crops if launch.kernel.__name__ == "_moments"}
    assert sides == {32 * 32, 16 * 16, 8 * 8, 4 * 4, 2 * 2}
