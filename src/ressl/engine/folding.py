"""A frozen ResNet with its norms folded into its convolutions: for features by the million.

In eval mode a batch norm is a fixed scale and shift per channel, so it disappears into the weights and bias of the
convolution before it, and bias, residual add and ReLU into that convolution's own kernel (cuDNN has it as one call).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl.engine.convolutions import stem_columns
from ressl.engine.pairing import can_pair, in_pairs, pairs, pixels
from ressl.engine.ways import Ways, borders


class _Conv(NamedTuple):
    weight: Tensor
    bias: Tensor
    stride: list[int]
    padding: list[int]
    paired: _Conv | None = None  # the same for two pixels at once, where that is faster
    inside: bool = False  # without the border, where that is faster

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(convolution + bias + residual)"""
        if self.paired is not None and x.shape[-1] % 2 == 0:
            return pixels(self.paired(x, None if residual is None else pairs(residual)))
        w, b, stride, padding, *_ = self
        found = borders() if self.inside and x.is_cuda else None
        if found is not None and found.can_leave_out(x, w, stride, padding):
            result: Tensor = found.convolve_inside_relu(x, w, b, residual)
            return result
        if x.is_cuda and residual is not None:
            return torch.cudnn_convolution_add_relu(x, w, residual, 1.0, b, stride, padding, [1, 1], 1)
        if x.is_cuda:
            return torch.cudnn_convolution_relu(x, w, b, stride, padding, [1, 1], 1)
        y = F.conv2d(x, w, b, stride, padding)
        return (y if residual is None else y + residual).relu()

    def linear(self, x: Tensor) -> Tensor:
        """The convolution alone."""
        return F.conv2d(x, self.weight, None, self.stride, self.padding)


class _Block(NamedTuple):
    main: list[_Conv]
    shortcut: _Conv | None  # its bias is part of the last convolution's, with whose result it is added

    def __call__(self, x: Tensor) -> Tensor:
        residual = x if self.shortcut is None else self.shortcut.linear(x)
        for convolution in self.main[:-1]:
            x = convolution(x)
        return self.main[-1](x, residual)


class Folded:
    """A frozen ResNet as a function of pictures, with the weights it had: B x 3 x H x W -> B x D in float32.

    It has two parts, so that the first can be fused with whatever makes the pictures.
    """

    def __init__(self, stem: _Conv, maxpool: nn.Module, blocks: list[_Block]) -> None:
        self.maxpool, self.blocks, self.dtype = maxpool, blocks, stem.weight.dtype
        # A 3 x 3 stem is a product with the columns of its input (see stem_columns), others a convolution. It belongs
        # to the first part, so that its columns need not be written down.
        self.columns = stem.weight.shape[2:] == (3, 3) and stem.stride == [1, 1] and stem.padding == [1, 1]
        if self.columns:
            weight = stem.weight.permute(0, 2, 3, 1).flatten(1)
            stem = stem._replace(weight=F.pad(weight, (0, -weight.shape[1] % 8)).contiguous())
        else:
            stem = stem._replace(weight=_last(F.pad(stem.weight, (0, 0, 0, 0, 0, -stem.weight.shape[1] % 8))))
        self.stem = stem

    def prepare(self, x: Tensor) -> Tensor:
        """What a 3 x 3 stem makes of them, or what another one reads."""
        x = x.to(self.dtype)
        if not self.columns:
            return _last(F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % 8)))
        return _affine_relu(stem_columns(x).permute(0, 2, 3, 1), self.stem.weight, self.stem.bias).permute(0, 3, 1, 2)

    def room(self, count: int, side: int, device: torch.device) -> Tensor:
        """Zeros of the shape, type and layout that :meth:`prepare` returns for pictures of that side."""
        channels = self.stem.weight.shape[0 if self.columns else 1]
        return torch.zeros(count, side, side, channels, dtype=self.dtype, device=device).permute(0, 3, 1, 2)

    def network(self, prepared: Tensor) -> Tensor:
        """Features from what :meth:`prepare` made."""
        x = self.maxpool(prepared if self.columns else self.stem(prepared))
        for block in self.blocks:
            x = block(x)
        return x.mean(dim=(2, 3), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32).float()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return self.network(self.prepare(x))


def _affine_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.is_cuda:  # one call of cuBLAS
        return torch._addmm_activation(bias, x.flatten(0, -2), weight.T).unflatten(0, x.shape[:-1])
    return F.linear(x, weight, bias).relu()


def fold(backbone: nn.Module, dtype: torch.dtype, ways: Ways = Ways()) -> Folded | None:  # noqa: B008
    """``backbone`` in eval mode with the weights it has now, its products in ``dtype``; None if it is no ResNet."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet  # here, because it takes seconds

    if not isinstance(backbone, ResNet) or not isinstance(backbone.fc, nn.Identity):
        return None
    if not isinstance(backbone.bn1, nn.BatchNorm2d):
        return None
    blocks = []
    for stage in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4):
        for block in stage:
            if not isinstance(block, (BasicBlock, Bottleneck)):
                return None
            names = ("1", "2") if isinstance(block, BasicBlock) else ("1", "2", "3")
            main = [_folded(getattr(block, f"conv{n}"), getattr(block, f"bn{n}"), dtype) for n in names]
            shortcut = None if block.downsample is None else _folded(block.downsample[0], block.downsample[1], dtype)
            if shortcut is not None:
                main[-1] = main[-1]._replace(bias=main[-1].bias + shortcut.bias)
            blocks.append(_Block([_going(convolution, ways) for convolution in main], shortcut))
    return Folded(_folded(backbone.conv1, backbone.bn1, dtype), backbone.maxpool, blocks)


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


def _going(convolution: _Conv, ways: Ways) -> _Conv:
    w, b, stride, padding, *_ = convolution
    if ways.paired and can_pair(w, stride, padding):
        return convolution._replace(paired=_Conv(in_pairs(w), b.repeat(2), [1, 2], padding))
    return convolution._replace(inside=ways.inside)


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
