"""CPC v2: Data-Efficient Image Recognition with Contrastive Predictive Coding.

Henaff, Srinivas, De Fauw, Razavi, Doersch, Eslami and van den Oord, ICML 2020, arXiv:1905.09272.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import losses
from ressl.errors import ResslError
from ressl.methods.base import Carry, Method, Output
from ressl.nn import Draws, all_rows, l2_normalize, rank, world
from ressl.nn.batchnorm import GroupedBatchNormAct2d, grouped_kind

COLUMNS = 5  # draws per patch


class CPCV2(Method):
    """From the patches above, a masked context network predicts those further down, among all patches of the batch;
    and so from below, from the left and from the right.

    One view, cut into overlapping patches, each changed by itself, or their colours alone would tell which belong
    together. The backbone has layer norm instead of batch norm, through whose statistics a patch could tell which
    others belong to its picture. Its filters are kept at a mean of zero: layer norm does not take away what a channel
    is on average, as batch norm does; patches then look alike at the start, and some runs never leave it.
    """

    title: ClassVar[str] = "CPC v2"
    paper: ClassVar[str] = "arXiv:1905.09272"
    forwards: ClassVar[int] = 1
    fewest_views: ClassVar[int] = 1
    most_views: ClassVar[int | None] = 1

    backbone: Patches

    def __init__(
        self,
        backbone: nn.Module,
        *,
        patch: int = 16,
        stride: int = 8,
        hidden_dim: int = 256,
        output_dim: int = 64,
        context_layers: int = 3,
        rows_ahead: int = 2,
        rows_ignored: int = 1,
        scale: float = 0.1,
        color_drop: float = 0.8,
        patch_jitter: float = 0.4,
    ) -> None:
        super().__init__()
        if patch < 1 or stride < 1 or rows_ignored < 0:
            raise ValueError("patch and stride must be at least 1 and rows_ignored at least 0")
        self.backbone = Patches(layer_norm(backbone), patch, stride)
        centre(self.backbone)
        width = self.backbone.features_dim
        self.context = nn.Sequential(*(ContextBlock(width, hidden_dim) for _ in range(context_layers)))
        self.targets = nn.Linear(width, output_dim)
        # W_k; the nearest rows overlap with what was seen, and would be too easy.
        self.ahead = range(rows_ignored + 1, rows_ahead + 1)
        if not self.ahead:
            raise ValueError(f"rows_ahead {rows_ahead} must be above rows_ignored {rows_ignored}")
        self.predictions = nn.ModuleList([nn.Linear(width, output_dim) for _ in self.ahead])
        self.draws = Draws()
        self.scale = scale
        self.color_drop, self.jitter = color_drop, patch_jitter

    def check_start(self, sizes: Sequence[int]) -> None:
        patch, size = self.backbone.patch, sizes[0]
        if patch > size:
            raise ResslError(f"a patch of {patch} px does not fit into a view of {size} px; lower --patch")
        rows = (size - patch) // self.backbone.stride + 1
        if self.ahead[-1] >= rows:
            raise ResslError(
                f"a view of {size} px has {rows} rows of patches, too few to predict {self.ahead[-1]} rows ahead; "
                "lower --rows-ahead, --stride or --patch"
            )

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        patches = self.backbone.cut(views[0])  # B x R x C x 3 x p x p
        B, R, C = patches.shape[:3]
        u = self.draws(B, R * C * COLUMNS).unflatten(1, (R, C, COLUMNS))
        patches = disguise(patches, u, self.color_drop, self.jitter)
        z = self.backbone.encode(patches)  # B x R x C x D
        c = self.context(sides(z).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # row r of it has seen rows 0..r of a side
        t = self.targets(z)  # B x R x C x d
        everything = all_rows(t.flatten(1, 2)).flatten(0, 1)  # patches of the whole batch, picture by picture
        if self.ahead[-1] >= R:
            raise ValueError(f"{R} rows of patches are too few to predict {self.ahead[-1]} rows ahead")
        own = sides(places(B, R, C, z.device))
        terms = []
        for k, predict in zip(self.ahead, self.predictions, strict=True):
            p = predict(c[:, :-k]).flatten(0, 2)  # 4 B (R-k) C x d
            terms.append(F.cross_entropy(self.scale * losses.similarity(p, everything), own[:, k:].flatten()))
        logs = {"spread": losses.spread(l2_normalize(t.detach().flatten(0, 2)))}
        return Output(torch.stack(terms).mean(), carry=None, logs=logs)

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        centre(self.backbone)


class Patches(nn.Module):
    """A backbone that sees a picture as overlapping patches; its features are their mean."""

    looks_at: ClassVar[str] = "overlapping patches of a picture"

    def __init__(self, network: nn.Module, patch: int, stride: int) -> None:
        super().__init__()
        self.network, self.patch, self.stride = network, patch, stride
        self.features_dim: int = network.features_dim  # type: ignore[assignment]

    def cut(self, images: Tensor) -> Tensor:
        """B x 3 x H x W -> the grid of patches, B x R x C x 3 x patch x patch."""
        p, s = self.patch, self.stride
        return images.unfold(2, p, s).unfold(3, p, s).permute(0, 2, 3, 1, 4, 5)

    def encode(self, patches: Tensor) -> Tensor:
        features: Tensor = self.network(patches.flatten(0, 2))
        return features.unflatten(0, patches.shape[:3])

    def forward(self, images: Tensor) -> Tensor:
        return self.encode(self.cut(images)).mean((1, 2))


class ContextBlock(nn.Module):
    """A residual block that looks left, right and up, never down."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, hidden, 1)
        self.across = nn.Conv2d(hidden, hidden, (1, 3), padding=(0, 1))
        self.down = nn.Conv2d(hidden, hidden, (2, 1))
        self.expand = nn.Conv2d(hidden, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.across(F.relu(self.reduce(x)))
        h = self.down(F.pad(h, (0, 0, 1, 0)))  # a row and the one above it
        return x + self.expand(F.relu(h))


def disguise(patches: Tensor, u: Tensor, color_drop: float, jitter: float) -> Tensor:
    """Each patch (B x R x C x 3 x p x p) by its own draws ``u`` (B x R x C x COLUMNS): one channel only, mirrored, and
    another brightness and contrast."""
    u = u[..., None, None, None]
    drop, which, mirror, contrast, brightness = u.unbind(3)
    kept = (which * 3).long().expand(*patches.shape[:3], 1, *patches.shape[4:])
    patches = torch.where(drop < color_drop, patches.gather(3, kept).expand_as(patches), patches)
    patches = torch.where(mirror < 0.5, patches.flip(-1), patches)
    changed = patches * (1 + jitter * (2 * contrast - 1)) + jitter * (2 * brightness - 1)
    return changed.to(patches.dtype)


def places(B: int, R: int, C: int, device: torch.device) -> Tensor:
    """Where, among the patches of the whole batch, stand those of this process: B x R x C."""
    picture = torch.arange(B, device=device)[:, None, None] * world() + rank()
    return picture * R * C + torch.arange(R * C, device=device).view(R, C)


def sides(grid: Tensor) -> Tensor:
    """The square grids (B x R x R ...) as seen from above, right, below and left: 4 B x R x R ..."""
    return torch.cat([grid.rot90(turns, (1, 2)) for turns in range(4)])


def layer_norm(module: nn.Module) -> nn.Module:
    """Every batch norm below ``module`` replaced by layer norm over channels and places."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            if (kind := grouped_kind(child)) is None:
                raise ResslError(
                    f"CPC v2 puts layer norm in the place of batch norm, and does not know this backbone's "
                    f"({type(child).__name__}); choose another --backbone"
                )
            parts: list[Any] = [nn.GroupNorm(1, child.num_features)]
            if issubclass(kind, GroupedBatchNormAct2d):
                parts += [child.drop, child.act]
            setattr(module, name, parts[0] if len(parts) == 1 else nn.Sequential(*parts))
        else:
            layer_norm(child)
    return module


@torch.no_grad()
def centre(network: nn.Module) -> None:
    """The mean of each filter taken out of it, where no bias would put it back."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.bias is None:
            module.weight.sub_(module.weight.mean((1, 2, 3), keepdim=True))
