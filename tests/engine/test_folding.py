"""The folded network against the module it was folded from."""

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from ressl.engine.folding import fold
from ressl.engine.fusion import fuse
from ressl.nn import build_backbone


def settled(name: str, stem: str, groups: int, width: int = 8) -> nn.Module:
    """A backbone whose norms have seen data and whose affine parameters are not 1 and 0."""
    torch.manual_seed(0)
    backbone = build_backbone(name, stem, width=width, bn_groups=groups)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    backbone.train()
    for _ in range(5):
        backbone(2 * torch.randn(8, 3, 40, 40) + 1)
    return backbone.eval()


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("stem", ["small", "medium", "imagenet"])
def test_features_are_those_of_the_module(name: str, stem: str) -> None:
    backbone = settled(name, stem, groups=2).double()
    x = torch.randn(6, 3, 36, 36, dtype=torch.float64)
    features = fold(backbone, torch.float64)
    assert features is not None
    with torch.no_grad():
        assert torch.allclose(features(x), backbone(x).float(), atol=1e-6)


@pytest.mark.parametrize("side", [12, 13])
def test_two_pixels_at_once_are_the_same_features(side: int) -> None:
    backbone = settled("resnet10", "small", groups=1, width=64).double()
    x = torch.randn(3, 3, side, side, dtype=torch.float64)
    features = fold(backbone, torch.float64)
    assert features is not None
    assert all(convolution.paired is not None for convolution in features.blocks[0].main)
    assert all(convolution.paired is None for block in features.blocks[1:] for convolution in block.main)
    with torch.no_grad():
        assert torch.allclose(features(x), backbone(x).float(), atol=1e-6)


def test_it_is_a_copy_of_the_weights_as_they_were() -> None:
    backbone = settled("resnet18", "small", groups=1)
    features, x = fold(backbone, torch.float32), torch.randn(2, 3, 32, 32)
    assert features is not None
    before = features(x)
    with torch.no_grad():
        for p in backbone.parameters():
            p.mul_(2.0)
    assert torch.equal(features(x), before)


def test_what_is_no_resnet_is_left_alone() -> None:
    assert fold(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), torch.float32) is None
    other_norms = ResNet(BasicBlock, [1, 1, 1, 1], norm_layer=lambda channels: nn.GroupNorm(4, channels))
    other_norms.fc = nn.Identity()
    assert fold(other_norms, torch.float32) is None
    assert fuse(other_norms) == 0
    assert "forward" not in other_norms.layer1[0].__dict__
