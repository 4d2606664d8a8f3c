"""Backbones: torchvision's ResNets with the paper's three stems, and any timm model by name.

A backbone maps B x 3 x H x W to B x D features after average pooling and says D in ``features_dim``. Names in the
state dict are torchvision's, so weights move to and from torchvision without renaming.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from ressl.errors import ResslError, unknown
from ressl.nn.batchnorm import group_batch_norm

Stem = Literal["small", "medium", "imagenet"]
STEMS: tuple[str, ...] = get_args(Stem)

# name: (block, blocks per stage)
BACKBONES: dict[str, tuple[type[BasicBlock] | type[Bottleneck], list[int]]] = {
    "resnet10": (BasicBlock, [1, 1, 1, 1]),
    "resnet18": (BasicBlock, [2, 2, 2, 2]),
    "resnet34": (BasicBlock, [3, 4, 6, 3]),
    "resnet50": (Bottleneck, [3, 4, 6, 3]),
}


class SlimResNet(ResNet):
    """torchvision's ResNet with a free width: 64 is the ordinary one, smaller ones are for small machines."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], layers: list[int], width: int = 64) -> None:
        super().__init__(block, layers)
        if width != 64:
            self.inplanes = width
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.layer1 = self._make_layer(block, width, layers[0])
            self.layer2 = self._make_layer(block, 2 * width, layers[1], stride=2)
            self.layer3 = self._make_layer(block, 4 * width, layers[2], stride=2)
            self.layer4 = self._make_layer(block, 8 * width, layers[3], stride=2)
        self.fc = nn.Identity()
        self.features_dim = 8 * width * block.expansion

    def set_stem(self, stem: Stem) -> None:
        """``small``: 3x3 stride 1, no max-pool. ``medium``: 3x3 stride 1, max-pool kept. ``imagenet``: 7x7 stride 2."""
        if stem == "imagenet":
            return
        self.conv1 = nn.Conv2d(3, self.conv1.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
        if stem == "small":
            self.maxpool = nn.Identity()

    def reset_convolutions(self) -> None:
        """torchvision's own initialisation, for the layers that replaced its."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def build_backbone(name: str, stem: Stem = "imagenet", width: int = 64, bn_groups: int = 1) -> nn.Module:
    """A backbone by name; ``timm/<model>`` takes any model of timm (``pip install ressl[timm]``).

    >>> build_backbone("resnet18", stem="small").features_dim
    512
    """
    if name.startswith("timm/"):
        return group_batch_norm(_timm(name.removeprefix("timm/")), bn_groups)
    if name not in BACKBONES:
        raise unknown("backbone", name, [*BACKBONES, "timm/<model>"])
    if stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    backbone = SlimResNet(*BACKBONES[name], width=width)
    backbone.set_stem(stem)
    backbone.reset_convolutions()
    return group_batch_norm(backbone, bn_groups)


def in_words(name: str, stem: str, width: int) -> str:
    """A backbone for a reader; timm's networks have a stem and a width of their own.

    >>> in_words("resnet18", "small", 64), in_words("resnet18", "small", 32), in_words("timm/vit_tiny", "small", 64)
    ('resnet18 (small stem)', 'resnet18 (small stem, width 32)', 'timm/vit_tiny')
    """
    slim = "" if width == 64 else f", width {width}"
    return name if name.startswith("timm/") else f"{name} ({stem} stem{slim})"


def _timm(name: str) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ResslError(f"the backbone timm/{name} needs timm: pip install 'ressl[timm]'") from error
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    # Some models (MobileNetV3, for one) have a layer between the last feature map and what they give out.
    model.features_dim = getattr(model, "head_hidden_size", None) or model.num_features
    return model
