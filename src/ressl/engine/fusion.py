"""Rewiring of a model from outside for speed: fused norms in torchvision's ResNets, bf16 weights made once a step.

The modules, their parameters and their state dicts stay what they are; only how a forward is computed changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ressl.engine import compiling
from ressl.engine.convolutions import WeightGradients, convolve, padded_stem, stem, stem_columns, stem_pixels
from ressl.engine.ways import Ways
from ressl.methods.base import Method, Output

Twice = Tensor | tuple[Tensor, Tensor]  # a result, or the same one twice: for the next block and for its shortcut


def fuse(
    module: nn.Module,
    beside: WeightGradients | None = None,
    *,
    shared: bool = True,
    stem_product: bool = True,
    pooled: bool = True,
    paired: bool = True,
    inside: bool = True,
    compiled: bool = False,
) -> int:
    """Let every ResNet below ``module`` compute norm, add and ReLU in one kernel; returns how many were found.

    ``beside`` takes the convolutions' weight gradients; ``shared`` results bring two gradients instead of their sum;
    ``pooled`` does the stem's norm and its max-pool in one; ``paired`` and ``inside`` as for :class:`Ways`;
    ``compiled`` compiles what little lies between the kernels.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet  # here, because it takes seconds

    fused, found = _Fused(beside, shared, stem_product, pooled, Ways(paired, inside), compiled), 0
    for part in module.modules():
        if not isinstance(getattr(part, "bn1", None), nn.BatchNorm2d):
            continue  # no ResNet, or one with other norms
        if isinstance(part, ResNet):
            part.forward = partial(fused.resnet, part)
            found += 1
        elif isinstance(part, BasicBlock):
            part.forward = partial(fused.block, part, ("1", "2"))
        elif isinstance(part, Bottleneck):
            part.forward = partial(fused.block, part, ("1", "2", "3"))
    return found


class _Fused:
    """The forwards of torchvision's ResNet and its blocks, by our kernels in training and plainly in eval mode."""

    def __init__(
        self, beside: WeightGradients | None, shared: bool, stem_product: bool, pooled: bool, ways: Ways,
        compiled: bool,
    ) -> None:  # fmt: skip
        self.beside, self.shared, self.stem_product, self.pooled = beside, shared, stem_product, pooled
        self.ways = ways
        seen = (stem_columns, stem_pixels)
        self.seen = tuple(map(compiling.compiled, seen)) if compiled else seen

    def norm(self, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Twice:
        if norm.training:
            from ressl.engine.kernels import norm_act_twice  # here, because Triton is not on every machine

            twice = norm_act_twice(norm, x, residual, relu)
            return twice if self.shared else twice[0]
        y = norm(x) if residual is None else norm(x) + residual
        return torch.relu(y) if relu else y

    def norm_pool(self, norm: nn.BatchNorm2d, pool: nn.Module, x: Tensor) -> Twice:
        """The end of the stem."""
        if norm.training and self.pooled:
            from ressl.engine.pooling import can_pool, norm_pool_twice

            if can_pool(pool):
                twice = norm_pool_twice(norm, x)
                return twice if self.shared else twice[0]
        y = self.norm(norm, x)
        return y if isinstance(pool, nn.Identity) else pool(_one(y))

    def convolve(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        return convolve(layer, x, self.beside, self.ways)

    def block(self, block: Any, names: tuple[str, ...], x: Twice) -> Twice:
        main, shortcut = x if isinstance(x, tuple) else (x, x)
        for name in names[:-1]:
            convolution, norm = getattr(block, f"conv{name}"), getattr(block, f"bn{name}")
            main = _one(self.norm(norm, self.convolve(convolution, main)))
        if block.downsample is not None:
            convolution, norm = block.downsample
            shortcut = _one(self.norm(norm, self.convolve(convolution, shortcut), relu=False))
        convolution, norm = getattr(block, f"conv{names[-1]}"), getattr(block, f"bn{names[-1]}")
        main = self.convolve(convolution, main)  # by this name, so that what it was made from can go
        return self.norm(norm, main, shortcut)

    def stem(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        return stem(layer, x, *self.seen) if self.stem_product else padded_stem(layer, x)

    def resnet(self, net: Any, x: Any) -> Tensor:
        x = self.stem(net.conv1, x) if net.training else net.conv1(x)
        x = self.norm_pool(net.bn1, net.maxpool, x)
        for block in chain(net.layer1, net.layer2, net.layer3, net.layer4):
            x = block(x)  # one name for all, so that a teacher keeps none of them
        features: Tensor = net.fc(_one(x).mean(dim=(2, 3)))
        return features


def _one(x: Twice) -> Tensor:
    return x[0] if isinstance(x, tuple) else x


class LowPrecisionWeights:
    """Calls the method with bf16 copies of its matrices and kernels, all refreshed by one fused copy.

    Autocast would make the same copies one by one, and as many casts of gradients on the way back. The numbers are the
    same: products in bf16, weights and their updates in float32.
    """

    def __init__(self, method: Method, dtype: torch.dtype, beside: WeightGradients | None = None) -> None:
        self.method, self.beside = method, beside
        owners = [m for m in method.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        wanted = {id(p) for owner in owners for p in owner.parameters(recurse=False)}
        self.masters: dict[str, nn.Parameter] = {n: p for n, p in method.named_parameters() if id(p) in wanted}
        self.copies = {
            name: p.detach().to(dtype, memory_format=torch.preserve_format).requires_grad_(p.requires_grad)
            for name, p in self.masters.items()
        }
        self.copy_of = {p: self.copies[name] for name, p in self.masters.items()}
        self.forward: Any = method.forward

    def __call__(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        with torch.no_grad():
            torch._foreach_copy_(list(self.copies.values()), list[Tensor](self.masters.values()))
        output: Output = functional_call(self.method, self.copies, (views,), wanted)
        return output

    def join(self) -> None:
        """Wait for gradients that are made beside the rest."""
        if self.beside is not None:
            self.beside.join()

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """Of a parameter: its own, or its copy's."""
        copy = self.copy_of.get(parameter)
        return parameter.grad if copy is None else copy.grad

    def forget(self) -> None:
        """Let go of the copies' gradients."""
        for copy in self.copies.values():
            copy.grad = None

    @torch.no_grad()
    def collect(self) -> None:
        """Bring the copies' gradients to the parameters, in float32."""
        self.join()
        trained = [name for name, copy in self.copies.items() if copy.grad is not None]
        low = [self.copies[name].grad for name in trained]
        full = [torch.empty_like(self.masters[name]) for name in trained]
        if trained:
            torch._foreach_copy_(full, low)  # type: ignore[arg-type]
        for name, gradient in zip(trained, full, strict=True):
            self.masters[name].grad = gradient
        self.forget()
