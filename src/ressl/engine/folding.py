"""A frozen ResNet with its norms folded into its convolutions: for features by the million.

In eval mode a batch norm is a fixed scale and shift per channel, so it disappears into the weights and bias of the
convolution before it, and bias, residual add and ReLU into that convolution's own kernel (cuDNN has it as one call).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet


class _Conv(NamedTuple):
    weight: Tensor
    bias: Tensor
    stride: list[int]
    padding: list[int]

    def __call__(self, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
        w, b, stride, padding = self
        if relu and x.is_cuda:
            if residual is None:
                return torch.cudnn_convolution_relu(x, w, b, stride, padding, [1, 1], 1)
            return torch.cudnn_convolution_add_relu(x, w, residual, 1.0, b, stride, padding, [1, 1], 1)
        y = F.conv2d(x, w, b, stride, padding)
        y = y if residual is None else y + residual
        return y.relu() if relu else y


class _Block(NamedTuple):
    main: list[_Conv]
    shortcut: _Conv | None

    def __call__(self, x: Tensor) -> Tensor:
        residual = x if self.shortcut is None else self.shortcut(x, relu=False)
        for convolution in self.main[:-1]:
            x = convolution(x)
        return self.main[-1](x, residual)


def fold(backbone: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
    """``backbone`` in eval mode as a fast function of pictures, with the weights it has now; None if it is no ResNet.

    Products are made in ``dtype``; the features come in float32.
    """
    if not isinstance(backbone, ResNet) or not isinstance(backbone.fc, nn.Identity):
        return None
    stem = _folded(backbone.conv1, backbone.bn1, dtype)
    missing = -stem.weight.shape[1] % 8  # channels that make the first convolution one for tensor cores
    if stem.weight.is_cuda:
        stem = stem._replace(weight=_last(F.pad(stem.weight, (0, 0, 0, 0, 0, missing))))
    blocks = []
    for stage in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4):
        for block in stage:
            if not isinstance(block, (BasicBlock, Bottleneck)):
                return None
            names = ("1", "2") if isinstance(block, BasicBlock) else ("1", "2", "3")
            main = [_folded(getattr(block, f"conv{n}"), getattr(block, f"bn{n}"), dtype) for n in names]
            down = block.downsample
            blocks.append(_Block(main, None if down is None else _folded(down[0], down[1], dtype)))
    maxpool = backbone.maxpool

    @torch.no_grad()
    def features(x: Tensor) -> Tensor:
        x = x.to(dtype)
        if x.is_cuda:
            x = _last(F.pad(x, (0, 0, 0, 0, 0, missing)))
        x = maxpool(stem(x))
        for block in blocks:
            x = block(x)
        return x.float().mean(dim=(2, 3))

    return features


@torch.no_grad()
def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> _Conv:
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = convolution.weight.double() * scale[:, None, None, None]
    bias = norm.bias.double() - norm.running_mean.double() * scale
    if convolution.bias is not None:
        bias += convolution.bias.double() * scale
    # The weight in the convolution's precision, the bias too: cuDNN's fused call wants one type.
    return _Conv(_last(weight.to(dtype)), bias.to(dtype), list(convolution.stride), list(convolution.padding))  # type: ignore[arg-type]


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
