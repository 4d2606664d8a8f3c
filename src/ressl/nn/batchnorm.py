"""Batch norm with statistics per group of the batch: shuffle BN's effect on one device.

The batch of N is split in G groups by position modulo G: sample i belongs to group i % G. In memory that is a free
view, and it is how G processes share a batch, so one process with G groups equals G processes with one group each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl.errors import ResslError
from ressl.nn.processes import all_rows, world


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose training statistics are taken within each of ``groups`` groups.

    Running statistics are the mean over the groups'; in eval mode it is plain batch norm. Weights, buffers and their
    names are those of ``nn.BatchNorm2d``, so a state dict moves freely between the two. ``num_batches_tracked`` stays
    as it is: nothing reads it, and counting would be a kernel launch per layer and step.
    """

    def __init__(self, num_features: int, groups: int = 1, **kwargs: object) -> None:
        super().__init__(num_features, **kwargs)  # type: ignore[arg-type]
        if groups < 1:
            raise ValueError(f"batch norm needs at least one group, not {groups}")
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.groups == 1:
            return super().forward(x)
        if x.shape[0] % self.groups:
            raise ValueError(f"a batch of {x.shape[0]} does not split into {self.groups} batch-norm groups")
        self._check_input_dim(x)
        if x.is_contiguous() and not torch.compiler.is_compiling():
            return self._native(x)
        return self._explicit(x)

    def _native(self, x: Tensor) -> Tensor:
        """Groups as channels: N x C x H x W seen as N/G x GC x H x W, one call of the library's kernel."""
        G, (N, C, H, W) = self.groups, x.shape
        mean = self.running_mean.repeat(G) if self.running_mean is not None else None
        var = self.running_var.repeat(G) if self.running_var is not None else None
        weight = self.weight.repeat(G) if self.affine else None
        bias = self.bias.repeat(G) if self.affine else None
        y = F.batch_norm(x.view(N // G, G * C, H, W), mean, var, weight, bias, True, self._factor(), self.eps)
        if self.running_mean is not None and self.running_var is not None and mean is not None and var is not None:
            with torch.no_grad():
                self.running_mean.copy_(mean.view(G, C).mean(0))
                self.running_var.copy_(var.view(G, C).mean(0))
        return y.view(N, C, H, W)

    def _explicit(self, x: Tensor) -> Tensor:
        """The same written out, for channels-last tensors and for the compiler, which fuses it with what follows."""
        G, (N, C, H, W) = self.groups, x.shape
        x5 = x.unflatten(0, (N // G, G)).to(torch.promote_types(x.dtype, torch.float32))  # n x G x C x H x W
        var, mean = torch.var_mean(x5, dim=(0, 3, 4), correction=0, keepdim=True)
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                n = N // G * H * W
                unbiased = var.detach().view(G, C).mean(0) * (n / max(n - 1, 1))
                self.running_mean.lerp_(mean.detach().view(G, C).mean(0).to(self.running_mean.dtype), self._factor())
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self._factor())
        scale = torch.rsqrt(var + self.eps)
        if self.affine:
            scale = scale * self.weight.view(1, 1, C, 1, 1)
        y = (x5 - mean) * scale
        if self.affine:
            y = y + self.bias.view(1, 1, C, 1, 1)
        return y.to(x.dtype).flatten(0, 1)

    def _factor(self) -> float:
        if self.momentum is None:
            raise ValueError("grouped batch norm keeps an exponential average; momentum=None is not supported")
        return self.momentum

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}"


class GroupedBatchNorm1d(nn.BatchNorm1d):
    """The same for the vectors of a head (N x C), so that a head sees the groups that its backbone sees."""

    def __init__(self, num_features: int, groups: int = 1, **kwargs: object) -> None:
        super().__init__(num_features, **kwargs)  # type: ignore[arg-type]
        if groups < 1:
            raise ValueError(f"batch norm needs at least one group, not {groups}")
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.groups == 1:
            return super().forward(x)
        G, (N, C) = self.groups, x.shape
        if N % G:
            raise ValueError(f"a batch of {N} does not split into {G} batch-norm groups")
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None  # noqa: PT018
        mean, var = self.running_mean.repeat(G), self.running_var.repeat(G)
        weight, bias = (self.weight.repeat(G), self.bias.repeat(G)) if self.affine else (None, None)
        y = F.batch_norm(x.reshape(N // G, G * C), mean, var, weight, bias, True, self.momentum, self.eps)
        with torch.no_grad():
            self.running_mean.copy_(mean.view(G, C).mean(0))
            self.running_var.copy_(var.view(G, C).mean(0))
        return y.view(N, C)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}"


def groups_of(module: nn.Module) -> int:
    """The batch-norm groups of a backbone; 1 where it has none."""
    return next((m.groups for m in module.modules() if isinstance(m, (GroupedBatchNorm2d, GroupedBatchNorm1d))), 1)


class _ThenAct(nn.Module):
    """What timm's BatchNormAct2d does after the norm; a norm of that kind keeps its parts, whatever its class is."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(self.drop(super().forward(x)))
        return result


class GroupedBatchNormAct2d(_ThenAct, GroupedBatchNorm2d):
    """Grouped batch norm and the activation behind it."""


def grouped_kind(norm: nn.BatchNorm2d) -> type[GroupedBatchNorm2d] | None:
    """The class of ours that does what ``norm`` does, in groups; None where we do not know what it does."""
    if type(norm) is nn.BatchNorm2d:
        return GroupedBatchNorm2d
    if isinstance(norm, GroupedBatchNorm2d):
        return type(norm)
    return GroupedBatchNormAct2d if type(norm).__name__ == "BatchNormAct2d" else None


def group_batch_norm(module: nn.Module, groups: int) -> nn.Module:
    """Let every batch norm below ``module`` take its statistics in groups; weights, buffers and names stay."""
    if groups == 1:
        return module
    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d) and not isinstance(child, GroupedBatchNorm2d):
            if (kind := grouped_kind(child)) is None:
                raise ResslError(
                    f"this backbone's norms ({type(child).__name__}) cannot be split into groups; use --bn-groups 1"
                )
            become(child, kind, groups)
        elif type(child) is nn.BatchNorm1d:
            become(child, GroupedBatchNorm1d, groups)
    return module


def become(norm: nn.Module, kind: type[nn.Module], groups: int = 1) -> None:
    """Another kind of norm, in place: whoever holds it has the new one."""
    norm.__class__ = kind
    norm.__dict__["groups"] = groups


class WholeBatchNorm1d(nn.BatchNorm1d):
    """Batch norm of B x D whose training statistics are those of the rows of all processes.

    A head's norm sees the whole batch when there is one process; so it does when there are eight.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return super().forward(x)
        if x.ndim != 2:
            raise ValueError("batch norm over all processes takes B x D")
        return _over_processes(self, x[:, None])[:, 0]


class WholeBatchNorm2d(GroupedBatchNorm2d):
    """The same of feature maps, each group's statistics over the processes: the norms of a recipe without groups."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return super().forward(x)
        return _over_processes(self, x.unflatten(0, (-1, self.groups))).flatten(0, 1)


class WholeBatchNormAct2d(_ThenAct, WholeBatchNorm2d):
    """The same, and the activation behind it."""


def _over_processes(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    """``x`` (n x G x C and what more there is) normalised by group and channel over the shares of all processes."""
    if norm.momentum is None:
        raise ValueError("batch norm over all processes keeps an exponential average")
    full = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(full, dim=(0, *range(3, x.ndim)), correction=0)  # G x C
    parts = all_rows(torch.stack((mean, var))[None])  # W x 2 x G x C: equal shares, so means of means are means
    mean = parts[:, 0].mean(0)
    var = parts[:, 1].mean(0) + parts[:, 0].var(0, correction=0)
    if norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            n = x.numel() // mean.numel() * world()
            norm.running_mean.lerp_(mean.detach().mean(0), norm.momentum)
            norm.running_var.lerp_(var.detach().mean(0) * (n / max(n - 1, 1)), norm.momentum)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.add_(1)
    along = lambda of: of.reshape(*of.shape, *[1] * (x.ndim - 3))  # of G x C or C
    y = (full - along(mean)) * torch.rsqrt(along(var) + norm.eps)
    return (y * along(norm.weight) + along(norm.bias) if norm.affine else y).to(x.dtype)


def share_batch_norm(module: nn.Module, whole: bool = False) -> nn.Module:
    """Let every ``nn.BatchNorm1d`` below ``module`` take its statistics over all processes; weights stay.

    ``whole``: a backbone's norms, too, and those of a head that has its groups, of which there is one.
    """
    for child in module.modules():
        if type(child) is nn.BatchNorm1d or (whole and type(child) is GroupedBatchNorm1d):
            child.__class__ = WholeBatchNorm1d
        elif whole and isinstance(child, nn.BatchNorm2d) and not isinstance(child, WholeBatchNorm2d):
            if (kind := grouped_kind(child)) is None:
                raise ResslError(
                    f"this backbone's norms ({type(child).__name__}) cannot take their statistics over several "
                    "processes; train it in one, or choose another --backbone"
                )
            become(child, WholeBatchNormAct2d if kind is GroupedBatchNormAct2d else WholeBatchNorm2d)
    return module
