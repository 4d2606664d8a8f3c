"""Backbones: torchvision's ResNets with the paper's three stems, and any timm model by name.

A backbone maps B x 3 x H x W to B x D features after average pooling and says D in ``features_dim``. Names in the
state dict are torchvision's, so weights move to and from torchvision without renaming.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from ressl.errors import ResslError, unknown
from ressl.nn.batchnorm import group_batch_norm

Stem = Literal["small", "medium", "imagenet"]
STEMS: tuple[str, ...] = get_args(Stem)
StemInit = Literal["torchvision", "pytorch"]

# name: (torchvision's block, blocks per stage)
BACKBONES: dict[str, tuple[str, list[int]]] = {
    "resnet10": ("BasicBlock", [1, 1, 1, 1]),
    "resnet18": ("BasicBlock", [2, 2, 2, 2]),
    "resnet34": ("BasicBlock", [3, 4, 6, 3]),
    "resnet50": ("Bottleneck", [3, 4, 6, 3]),
}


def build_backbone(
    name: str, stem: Stem = "imagenet", width: int = 64, bn_groups: int = 1, stem_init: StemInit = "torchvision"
) -> nn.Module:
    """A backbone by name; ``timm/<model>`` takes any model of timm (``pip install ressl[timm]``).

    ``stem_init``: whether a stem that replaces torchvision's begins as its other convolutions do, or as PyTorch's
    layers do (in the authors' code, where it takes its place later, almost twice as large).

    >>> build_backbone("resnet18", stem="small").features_dim
    512
    """
    if name.startswith("timm/"):
        return group_batch_norm(_timm(name.removeprefix("timm/")), bn_groups)
    if name not in BACKBONES:
        raise unknown("backbone", name, [*BACKBONES, "timm/<model>"])
    if stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    from ressl.nn.resnet import SlimResNet  # here, because it takes seconds to import

    backbone = SlimResNet(*BACKBONES[name], width=width)
    if stem_init == "pytorch":
        backbone.reset_convolutions()
        backbone.set_stem(stem)
    else:
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
