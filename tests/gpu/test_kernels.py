"""The fused norm against separate batch norms, on the device and in bf16 as it is used."""

import copy
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from ressl.nn import GroupedBatchNorm2d


@pytest.mark.parametrize(
    ("N", "C", "side", "groups"),
    [(256, 64, 32, 8), (256, 512, 4, 8), (32, 48, 7, 2), (64, 2048, 7, 1), (24, 64, 56, 3)],
)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_norm_equals_the_plain_one(N, C, side, groups, residual, relu, dtype):
    from ressl.engine.kernels import norm_act

    torch.manual_seed(0)
    norm = GroupedBatchNorm2d(C, groups).cuda()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    reference = copy.deepcopy(norm).double()
    last = {"memory_format": torch.channels_last}
    x = (torch.randn(N, C, side, side, device="cuda") * 2 + 1).to(dtype).to(**last)
    r = torch.randn(N, C, side, side, device="cuda").to(dtype).to(**last)
    a, ar = x.clone().requires_grad_(), r.clone().requires_grad_()
    b, br = x.double().requires_grad_(), r.double().requires_grad_()
    y = norm_act(norm, a, ar if residual else None, relu)
    z = reference._explicit(b)
    z = z + br if residual else z
    z = z.relu() if relu else z
    # The gradient passes where ours is alive: a value that bf16 rounds to zero may differ in that.
    w = torch.randn_like(y)
    w = torch.where((y > 0) == (z > 0), w, 0) if relu else w
    y.backward(w)
    z.backward(w.double())

    def error(ours, theirs):
        return ((ours.double() - theirs).norm() / theirs.norm()).item()

    bound = 1e-5 if dtype == torch.float32 else 6e-3
    assert error(y, z) < bound
    assert error(a.grad, b.grad) < bound
    if residual:
        assert error(ar.grad, br.grad) < bound
    assert error(norm.weight.grad, reference.weight.grad) < bound
    assert error(norm.bias.grad, reference.bias.grad) < bound
    assert error(norm.running_mean, reference.running_mean) < 1e-4
    assert error(norm.running_var, reference.running_var) < 1e-4


@pytest.mark.parametrize(("N", "C", "side", "groups"), [(64, 64, 112, 8), (32, 64, 65, 1), (24, 48, 30, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_norm_and_pool_equal_the_plain_ones(N, C, side, groups, dtype):
    from ressl.engine.pooling import norm_pool_twice

    torch.manual_seed(0)
    norm = GroupedBatchNorm2d(C, groups).cuda()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    reference = copy.deepcopy(norm).double()
    x = torch.randn(N, C, side, side, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    one, two = norm_pool_twice(norm, a)
    z = torch.nn.functional.max_pool2d(reference._explicit(b).relu(), 3, 2, 1)
    v, w = torch.randn_like(one), torch.randn_like(one)
    torch.autograd.backward([one, two], [v, w])
    z.backward(v.double() + w.double())
    pairs = [
        (one, z),
        (a.grad, b.grad),
        (norm.weight.grad, reference.weight.grad),
        (norm.bias.grad, reference.bias.grad),
    ]
    for ours, theirs in pairs:
        assert ((ours.double() - theirs).norm() / theirs.norm()).item() < (2e-3 if dtype == torch.float32 else 1e-2)
    assert torch.allclose(norm.running_var.double(), reference.running_var, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("N", "C", "OUT", "H", "W"), [(1024, 512, 512, 4, 4), (2048, 256, 256, 8, 8), (130, 256, 128, 2, 3)]
)
def test_convolutions_without_their_border_equal_the_plain_ones(N, C, OUT, H, W, dtype):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a card that takes tiles by itself")
    from ressl.engine.borders import convolve_inside, convolve_inside_relu, gradient_inside

    torch.manual_seed(0)
    last = {"dtype": dtype, "memory_format": torch.channels_last}
    x, dy, r = (torch.randn(N, channels, H, W, device="cuda").to(**last) for channels in (C, OUT, OUT))
    weight, bias = (torch.randn(OUT, C, 3, 3, device="cuda") / C).to(**last), torch.randn(OUT, device="cuda").to(dtype)
    exact = x.double().requires_grad_()
    y = torch.nn.functional.conv2d(exact, weight.double(), padding=1)
    (dx,) = torch.autograd.grad(y, exact, dy.double())
    y, b = y.detach(), bias.double()[:, None, None]
    graph = torch.cuda.CUDAGraph()
    make = lambda: (convolve_inside(x, weight), gradient_inside(dy, weight), convolve_inside_relu(x, weight, bias, r))
    make()  # compiles them
    with torch.cuda.graph(graph):
        made = make()
    for one in made:
        one.fill_(torch.nan)
    graph.replay()
    for ours, theirs in zip(made, (y, dx, (y + b + r.double()).relu()), strict=True):
        assert ((ours.double() - theirs).norm() / theirs.norm()).item() < (1e-3 if dtype == torch.float16 else 6e-3)


def test_two_runs_agree_bit_for_bit():
    from ressl.engine.kernels import norm_act

    def once():
        torch.manual_seed(0)
        norm = GroupedBatchNorm2d(64, 8).cuda()
        x = torch.randn(64, 64, 16, 16, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        x.requires_grad_()
        norm_act(norm, x).sum().backward()
        return x.grad, norm.weight.grad

    for first, second in zip(once(), once(), strict=True):
        assert torch.equal(first, second)


def compiled_late(cache: str) -> set[str]:
    """Kernels that a network makes although those that it needs were built ahead."""
    from ressl.engine.ahead import Rehearsal, _target
    from ressl.engine.building import build
    from ressl.engine.fusion import fuse
    from ressl.nn import build_backbone

    os.environ["TRITON_CACHE_DIR"] = cache
    backbone = build_backbone("resnet18", "small", width=24, bn_groups=2).cuda().to(memory_format=torch.channels_last)
    rehearsal = Rehearsal(backbone, (48, 3, 32, 32), torch.bfloat16)

    def compiled() -> set[str]:
        """Kernels; what launches them is in the cache too, and takes no time."""
        return {str(path.relative_to(cache)) for path in Path(cache).rglob("*.cubin")}

    build(rehearsal.launches, _target())
    built = compiled()
    assert len(built) > 20
    fuse(backbone.train())
    for part in backbone.modules():
        if isinstance(part, (torch.nn.Conv2d, torch.nn.Linear)):
            part.to(torch.bfloat16)
    pictures = torch.zeros(48, 3, 32, 32, dtype=torch.bfloat16, device="cuda")
    backbone(pictures.contiguous(memory_format=torch.channels_last)).sum().backward()  # what it launches is all there
    return compiled() - built


def test_built_ahead_nothing_is_left_to_compile(tmp_path):
    """As a run begins, in a process of its own: which assembler Triton takes there depends on what went before."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        assert fresh.submit(compiled_late, str(tmp_path)).result() == set()


def test_convolutions_are_chosen_ahead_where_they_are_used():
    """The second of two like steps chooses nothing any more; after a rehearsal the first one neither."""
    from ressl.engine.ahead import Rehearsal
    from ressl.engine.tuning import fastest
    from ressl.nn import build_backbone

    def seconds(width: int, ahead: bool) -> float:
        network = build_backbone("resnet18", "small", width=width, bn_groups=2).cuda().train()
        network.to(memory_format=torch.channels_last)
        if ahead:
            Rehearsal(network, (64, 3, 32, 32), torch.bfloat16, stem_product=False).choose()
        pictures = torch.zeros(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            network(pictures).sum().backward()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    with fastest(torch.device("cuda")):
        seconds(16, ahead=False)  # libraries and the like
        unaware, aware = seconds(40, ahead=False), seconds(48, ahead=True)
    print(f"first step {unaware:.2f} s, after a rehearsal {aware:.2f} s")
    assert aware < 0.5 * unaware
