"""Convolutions without the zeros around few pixels: in Triton's interpreter, and compiled for a card."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ressl.engine import ways
from ressl.engine.ahead import sketched
from ressl.engine.building import build
from ressl.nn import build_backbone

triton = pytest.importorskip("triton")
borders = pytest.importorskip("ressl.engine.borders")
H200 = ("cuda", 90, 32)

CASES = """
import torch
import torch.nn.functional as F
from ressl.engine import borders
from ressl.engine.borders import convolve_inside, convolve_inside_relu, gradient_inside

torch.set_num_threads(1)
# Not in bf16, whose numbers the interpreter takes for whole ones in a product; tests/gpu has it. One row and one
# column of pixels, several blocks of pictures and of channels, and pictures that do not fill the last block.
sizes = [(5, 128, 256, 4, 4), (130, 256, 128, 2, 3), (3, 128, 128, 1, 4), (2, 128, 128, 3, 1)]
for dtype, sizes in ((torch.float32, sizes), (torch.float16, sizes[:2])):
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 5e-3}
    for N, C, OUT, H, W in sizes:
        torch.manual_seed(N)
        last = lambda *shape: torch.randn(*shape).to(dtype).contiguous(memory_format=torch.channels_last)
        x, dy, residual = last(N, C, H, W), last(N, OUT, H, W), last(N, OUT, H, W)
        weight, bias = last(OUT, C, 3, 3) / C**0.5, torch.randn(OUT).to(dtype)
        exact = x.double().requires_grad_()
        y = F.conv2d(exact, weight.double(), padding=1)
        (dx,) = torch.autograd.grad(y, exact, dy.double())
        y, b, r = y.detach(), bias.double()[:, None, None], residual.double()
        for ours, theirs in (
            (convolve_inside(x, weight), y),
            (gradient_inside(dy, weight), dx),
            (convolve_inside_relu(x, weight, bias), (y + b).relu()),
            (convolve_inside_relu(x, weight, bias, residual), (y + b + r).relu()),
        ):
            assert ours.is_contiguous(memory_format=torch.channels_last) and ours.dtype == dtype
            torch.testing.assert_close(ours.double(), theirs, **close)

sick = torch.zeros(2, weight.shape[1], 2, 2).contiguous(memory_format=torch.channels_last)
sick[1, 5, 0, 0] = float("nan")  # stays none, and stays in its picture
made = convolve_inside_relu(sick, weight.float(), bias)
assert made[1].isnan().all() and not made[0].isnan().any()

borders.MANY = 0  # programs of twice as many columns
x, weight = last(3, 128, 2, 2).float(), last(256, 128, 3, 3).float() / 12
twice = convolve_inside(x, weight)
torch.testing.assert_close(twice, F.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-4)
print("all agree")
"""


@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="Triton's interpreter before 3.7 cannot count loops with NumPy 2.4",
)
def test_it_makes_the_convolution_and_its_gradient(interpret: Callable[[str], None]) -> None:
    interpret(CASES)


def test_it_is_left_out_where_that_may_be_faster() -> None:
    def asked(N: int, C: int, OUT: int, side: int, dtype: torch.dtype = torch.bfloat16, stride: int = 1) -> bool:
        x, weight = (torch.empty(*shape, dtype=dtype, device="meta") for shape in ((N, C, side, side), (OUT, C, 3, 3)))
        return bool(borders.can_leave_out(x, weight, [stride] * 2, [1, 1]))

    assert asked(256, 512, 512, 4)
    assert asked(256, 256, 256, 8)
    assert not asked(128, 512, 512, 4)  # too few programs
    assert not asked(1024, 128, 128, 16)  # a border that is less of the whole
    assert not asked(4096, 64, 512, 4)
    assert not asked(1024, 512, 512, 4, torch.float32)
    assert not asked(1024, 512, 512, 4, stride=2)


def test_a_network_that_takes_it_is_known_and_built_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ways, "borders", lambda: borders)
    backbone = build_backbone("resnet10", "small", bn_groups=2)
    shape = (1024, 3, 32, 32)
    plain, taken = (sketched(backbone, shape, torch.bfloat16, inside=inside) for inside in (False, True))
    found = [one for one in taken.launches if one.kernel.__name__ == "_inside"]
    assert sorted(one.constants["BACK"] for one in found) == [False, False, True, True]  # of two stages
    assert not [one for one in plain.launches if one.kernel.__name__ == "_inside"]
    assert len(taken.convolutions) == len(plain.convolutions) - 2  # the way forth; of the way back weights remain
    build(found, H200)
    assert len(list(tmp_path.glob("*/*.cubin"))) == 4
