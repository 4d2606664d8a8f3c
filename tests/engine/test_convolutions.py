"""The first layer as a matrix product, against the convolution itself."""

import pytest
import torch
from torch import nn

from ressl.engine.convolutions import stem


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
