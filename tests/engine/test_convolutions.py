"""The first layer as a matrix product, and our ways of the others, against the convolution itself."""

from functools import partial

import pytest
import torch
from torch import nn

from ressl.engine.convolutions import WeightGradients, _Convolution, convolve, stem
from ressl.engine.pairing import both_ways, convolve_pairs, pairs, pixels
from ressl.engine.ways import Way, Ways


@pytest.mark.parametrize("side", [9, 12])  # a 7 x 7 stem goes another way where it is odd
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (7, 2, 3), (3, 2, 1)])
def test_the_stem_is_the_convolution(kernel: int, stride: int, padding: int, side: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 10, kernel, stride, padding, bias=False).double()
    x, w = torch.randn(4, 3, side, side + 2, dtype=torch.float64), None
    plain = layer(x)
    w = torch.randn_like(plain)
    (expected,) = torch.autograd.grad((plain * w).sum(), layer.weight)
    ours = stem(layer, x)
    (found,) = torch.autograd.grad((ours * w).sum(), layer.weight)
    assert torch.allclose(ours, plain)
    assert torch.allclose(found, expected)


def test_two_pixels_at_once_are_the_convolution_and_its_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False).double()
    x = torch.randn(2, 64, 5, 6, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(2, 64, 5, 6, dtype=torch.float64)
    plain = layer(x)
    expected = torch.autograd.grad((plain * w).sum(), (x, layer.weight))
    way = Way(*(partial(convolve_pairs, weight=w) for w in both_ways(layer.weight.detach())))
    ours = _Convolution.apply(x, layer.weight, [1, 1], [1, 1], None, way)
    found = torch.autograd.grad((ours * w).sum(), (x, layer.weight))
    assert torch.allclose(ours, plain)
    assert all(map(torch.allclose, found, expected))
    assert torch.equal(pixels(pairs(plain)), plain)


@pytest.mark.parametrize(
    ("channels", "width", "dtype", "taken"),
    [
        (64, 6, torch.bfloat16, True),
        (64, 5, torch.bfloat16, False),  # rows of odd length have a pixel left over
        (128, 6, torch.bfloat16, False),
        (64, 6, torch.float32, False),
    ],
)
def test_pixels_are_paired_where_it_is_faster(
    channels: int, width: int, dtype: torch.dtype, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turning = pytest.importorskip("ressl.engine.turning")  # it needs Triton
    torch.manual_seed(0)
    layer = nn.Conv2d(64, channels, 3, padding=1, bias=False).to(dtype)
    asked = []

    def twins(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(weight)
        return both_ways(weight)

    monkeypatch.setattr(turning, "both_ways", twins)
    x = torch.randn(2, 64, 4, width).to(dtype).contiguous(memory_format=torch.channels_last)
    for grad in (True, False):
        asked.clear()
        with torch.set_grad_enabled(grad):
            ours = convolve(layer, x, None, Ways())
        assert bool(asked) == taken
        expected = nn.functional.conv2d(x.float(), layer.weight.float(), padding=1)
        assert (ours.float() - expected).norm() < 0.01 * expected.norm()
        assert ours.requires_grad == grad


def test_a_weight_that_is_used_several_times_has_one_sum() -> None:
    """As with crops of several sizes; and in the next step it begins anew."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2)]).double()
    layers.to(memory_format=torch.channels_last)
    crops = [torch.randn(2, 4, side, side, dtype=torch.float64) for side in (8, 6, 4)]
    crops = [crop.contiguous(memory_format=torch.channels_last) for crop in crops]
    gradients = WeightGradients(torch.device("cpu"))
    for _ in range(2):
        layers.zero_grad()
        sum(layers[1](layers[0](crop)).square().mean() for crop in crops).backward()
        expected = [p.grad for p in layers.parameters()]
        layers.zero_grad()
        sum(
            convolve(layers[1], convolve(layers[0], crop, gradients), gradients).square().mean() for crop in crops
        ).backward()
        known = {known.data_ptr() for known in gradients.sums.values()}
        gradients.join()
        for p, gradient in zip(layers.parameters(), expected, strict=True):
            assert torch.allclose(p.grad, gradient)
            assert p.grad.data_ptr() in known  # not a copy of what came first
        assert len(known) == 2
        assert not gradients.sums
