"""Crops that share a forward, against a naive loop over them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ressl.methods import ReSSL
from ressl.nn import build_backbone, forward_crops
from ressl.nn.batchnorm import GroupedBatchNorm2d

SIZES = ([16], [16, 12], [16, 12, 12, 8], [12, 16, 12, 8, 12], [8, 8])


def crops(sizes: list[int]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, size, size, generator=draw, dtype=torch.float64) for size in sizes]


class Counting(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.inner(x)
        return result


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("sizes", SIZES)
def test_sharing_a_forward_changes_nothing(sizes: list[int], groups: int) -> None:
    torch.manual_seed(0)
    loop = Counting(build_backbone("resnet10", "medium", 4, groups).double().train())
    shared = copy.deepcopy(loop)
    expected = [loop(crop) for crop in crops(sizes)]
    found = forward_crops(shared, crops(sizes))
    assert shared.calls == len(set(sizes))
    weights = torch.randn(expected[0].shape[1], dtype=torch.float64)
    for one, two in zip(expected, found, strict=True):
        torch.testing.assert_close(one, two)
    for outputs in (expected, found):
        sum(((o @ weights) ** 2).mean() for o in outputs).backward()  # type: ignore[union-attr]
    for one_, two_ in zip(loop.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(one_.grad, two_.grad)
    assert {m.groups for m in shared.modules() if isinstance(m, GroupedBatchNorm2d)} <= {groups}


@pytest.mark.parametrize("known", [True, False])
def test_norms_of_other_libraries_see_one_crop_at_a_time(known: bool) -> None:
    layers = pytest.importorskip("timm.layers")

    class OtherNorm(layers.BatchNormAct2d):  # type: ignore[misc, name-defined]
        pass

    torch.manual_seed(0)
    norm = (layers.BatchNormAct2d if known else OtherNorm)(5)
    net = Counting(nn.Sequential(nn.Conv2d(3, 5, 1), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().train())
    views = [(1 + i) * crop for i, crop in enumerate(crops([8, 8, 12]))]
    twin = copy.deepcopy(net)
    for one, two in zip([twin(view) for view in views], forward_crops(net, views), strict=True):
        torch.testing.assert_close(one, two)
    assert net.calls == (2 if known else 3)


def test_running_statistics_move_to_the_mean_over_the_crops() -> None:
    torch.manual_seed(0)
    norm = nn.Sequential(nn.BatchNorm2d(3, momentum=1.0), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().train()
    two = crops([8, 8])
    forward_crops(norm, two)
    expected = torch.stack([crop.mean(dim=(0, 2, 3)) for crop in two]).mean(0)
    torch.testing.assert_close(norm[0].running_mean, expected)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_loss_is_the_mean_over_all_crops_against_one_target(sizes: list[int]) -> None:
    torch.manual_seed(0)
    options = {"hidden_dim": 16, "output_dim": 8, "queue_size": 32, "head_batch_norm": True}
    method = ReSSL(build_backbone("resnet10", "medium", 4, 2), **options).double().train()
    weak = crops([16])[0]
    single = [copy.deepcopy(method)([weak, crop]).loss for crop in crops(sizes)]
    whole = method([weak, *crops(sizes)]).loss
    torch.testing.assert_close(whole, torch.stack(single).mean())


def test_a_failure_leaves_the_groups_as_they_were() -> None:
    backbone = build_backbone("resnet10", "medium", 4, 2)

    def fail(*args: object) -> None:
        raise RuntimeError("no memory")

    backbone.layer4.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        forward_crops(backbone, [torch.randn(8, 3, 16, 16)] * 2)
    assert {m.groups for m in backbone.modules() if isinstance(m, GroupedBatchNorm2d)} == {2}
