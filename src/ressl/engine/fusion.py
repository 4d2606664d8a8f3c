"""Rewiring of a model from outside for speed: fused norms in torchvision's ResNets, bf16 weights made once a step.

The modules, their parameters and their state dicts stay what they are; only how a forward is computed changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from ressl.methods.base import Method, Output


def fuse_norms(module: nn.Module) -> int:
    """Let every ResNet below ``module`` compute norm, add and ReLU in one kernel; returns how many were found."""
    found = 0
    for part in module.modules():
        if isinstance(part, ResNet):
            part.forward = MethodType(_resnet, part)
            found += 1
        elif isinstance(part, BasicBlock):
            part.forward = MethodType(_basic, part)
        elif isinstance(part, Bottleneck):
            part.forward = MethodType(_bottleneck, part)
    return found


def _norm(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    if norm.training:
        from ressl.engine.kernels import norm_act  # here, because Triton is not on every machine

        return norm_act(norm, x, residual, relu)
    y = norm(x) if residual is None else norm(x) + residual
    return torch.relu(y) if relu else y


def _shortcut(block: Any, x: Tensor) -> Tensor:
    if block.downsample is None:
        return x
    convolution, norm = block.downsample
    return _norm(norm, convolution(x), relu=False)


def _basic(self: Any, x: Tensor) -> Tensor:
    out = _norm(self.bn1, self.conv1(x))
    return _norm(self.bn2, self.conv2(out), _shortcut(self, x))


def _bottleneck(self: Any, x: Tensor) -> Tensor:
    out = _norm(self.bn1, self.conv1(x))
    out = _norm(self.bn2, self.conv2(out))
    return _norm(self.bn3, self.conv3(out), _shortcut(self, x))


def _stem(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """The first convolution with its three channels padded to eight, which the tensor cores can take."""
    missing = -x.shape[1] % 8
    weight = F.pad(convolution.weight, (0, 0, 0, 0, 0, missing))
    x = F.pad(x, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, weight, None, convolution.stride, convolution.padding)


def _resnet(self: Any, x: Tensor) -> Tensor:
    x = _stem(self.conv1, x) if self.training else self.conv1(x)
    x = self.maxpool(_norm(self.bn1, x))
    x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
    return self.fc(x.mean(dim=(2, 3)))


class LowPrecisionWeights:
    """Calls the method with bf16 copies of its matrices and kernels, all refreshed by one fused copy.

    Autocast would make the same copies one by one, and as many casts of gradients on the way back. The numbers are the
    same: products in bf16, weights and their updates in float32.
    """

    def __init__(self, method: Method, dtype: torch.dtype) -> None:
        self.method = method
        owners = [m for m in method.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        wanted = {id(p) for owner in owners for p in owner.parameters(recurse=False)}
        self.masters: dict[str, nn.Parameter] = {n: p for n, p in method.named_parameters() if id(p) in wanted}
        self.copies = {
            name: p.detach().to(dtype, memory_format=torch.preserve_format).requires_grad_(p.requires_grad)
            for name, p in self.masters.items()
        }
        self.forward: Any = method.forward

    def __call__(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        with torch.no_grad():
            torch._foreach_copy_(list(self.copies.values()), list[Tensor](self.masters.values()))
        output: Output = functional_call(self.method, self.copies, (views,), wanted)
        return output

    @torch.no_grad()
    def collect(self) -> None:
        """Bring the copies' gradients to the parameters, in float32."""
        trained = [name for name, copy in self.copies.items() if copy.grad is not None]
        low = [self.copies[name].grad for name in trained]
        full = [torch.empty_like(self.masters[name]) for name in trained]
        torch._foreach_copy_(full, low)  # type: ignore[arg-type]
        for name, gradient in zip(trained, full, strict=True):
            self.masters[name].grad = gradient
            self.copies[name].grad = None
