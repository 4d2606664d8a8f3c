"""Frozen features against a plain forward."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from torch import nn

from ressl.evaluation.features import extract, frozen, prepare
from ressl.nn import build_backbone

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture
def backbone() -> nn.Module:
    torch.manual_seed(0)
    made = build_backbone("resnet10", "medium", 4, 2).train()
    with torch.no_grad():  # running statistics of its own, so that eval and train mode differ
        for _ in range(3):
            made(torch.randn(8, 3, 16, 16))
    return made


def images(n: int = 23, side: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def plain(backbone: nn.Module, x: torch.Tensor) -> torch.Tensor:
    backbone.eval()
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    with torch.no_grad():
        features = torch.cat([backbone((x[i : i + 1].float() / 255 - mean) / std) for i in range(len(x))])
    backbone.train()
    return features


@pytest.mark.parametrize("batch_size", [1, 7, 512])
def test_features_are_a_plain_forward_in_eval_mode(backbone: nn.Module, batch_size: int) -> None:
    reference = plain(backbone, images())
    ours = extract(backbone, images(), mean=MEAN, std=STD, batch_size=batch_size)
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
    assert not ours.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_and_nothing_changes(backbone: nn.Module, training: bool) -> None:
    backbone.train(training)
    before = {name: t.clone() for name, t in backbone.state_dict().items()}
    extract(backbone, images(), mean=MEAN, std=STD)
    assert backbone.training is training
    assert all(torch.equal(t, before[name]) for name, t in backbone.state_dict().items())
    with frozen(backbone):
        assert not backbone.training
        assert not torch.is_grad_enabled()
    assert backbone.training is training
    with pytest.raises(ZeroDivisionError), frozen(backbone):
        _ = 1 / 0
    assert backbone.training is training


def test_the_test_view_is_torchvision_s_resize_and_centre_crop() -> None:
    x = images(4, 40)
    ours = prepare(x, MEAN, STD, size=16, resize=20)
    floats = TF.center_crop(TF.resize(TF.to_dtype(x, torch.float32, scale=True), [20], antialias=True), [16, 16])
    theirs = TF.normalize(floats, list(MEAN), list(STD))
    assert (ours - theirs).abs().max() < 2 / 255 / min(STD)


def test_without_resize_pictures_are_taken_as_they_are() -> None:
    x = images(4, 24)
    torch.testing.assert_close(
        prepare(x, MEAN, STD, size=16), TF.normalize(TF.to_dtype(x, torch.float32, scale=True), list(MEAN), list(STD))
    )


def test_progress_counts_pictures(backbone: nn.Module) -> None:
    seen: list[tuple[int, int]] = []
    extract(backbone, images(), mean=MEAN, std=STD, batch_size=10, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(10, 23), (20, 23), (23, 23)]
