"""The paper's experiments. Every number is from the paper or, where it is silent, from the authors' code.

ressl pretrain cifar10          # then: ressl evaluate RUN --protocol linear
"""

from __future__ import annotations

from dataclasses import replace

from ressl.data.views import STRONG, WEAK, View
from ressl.evaluation.linear import IMAGENET
from ressl.recipes.recipe import Recipe

CIFAR10 = Recipe(
    name="cifar10",
    summary="CIFAR-10, 32 px, ResNet-18",
    data="cifar10",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    options={
        "hidden_dim": 2048,
        "output_dim": 128,
        "queue_size": 4096,
        "teacher_momentum": 0.99,
        "student_temperature": 0.1,
        "teacher_temperature": 0.05,
    },
    paper={"linear": 90.20},
)

CIFAR100 = replace(
    CIFAR10,
    name="cifar100",
    summary="CIFAR-100, 32 px, ResNet-18",
    data="cifar100",
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    options=dict(CIFAR10.options) | {"teacher_temperature": 0.04},
    paper={"linear": 63.79},
)

_MEDIUM = replace(
    CIFAR10,
    stem="medium",
    image_size=64,
    views=(replace(WEAK, size=64), replace(STRONG, size=64)),
    options=dict(CIFAR10.options) | {"queue_size": 16384, "teacher_momentum": 0.996},
)

STL10 = replace(
    _MEDIUM,
    name="stl10",
    summary="STL-10 (train + unlabelled), 64 px, ResNet-18",
    data="stl10",
    mean=(0.4408, 0.4279, 0.3867),
    std=(0.2682, 0.2610, 0.2686),
    paper={"linear": 88.25},
)

TINY_IMAGENET = replace(
    _MEDIUM,
    name="tiny-imagenet",
    summary="Tiny ImageNet, 64 px, ResNet-18",
    data="tiny-imagenet",
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2302, 0.2265, 0.2262),
    options=dict(_MEDIUM.options) | {"teacher_temperature": 0.04},
    paper={"linear": 46.60},
)

IMAGENET_R50 = Recipe(
    name="imagenet-r50",
    summary="ImageNet, 224 px, ResNet-50",
    data="imagenet",
    image_size=224,
    views=(replace(WEAK, size=224), replace(STRONG, size=224)),
    backbone="resnet50",
    stem="imagenet",
    options={
        "hidden_dim": 4096,
        "output_dim": 512,
        "queue_size": 131072,
        "teacher_momentum": 0.999,
        "student_temperature": 0.1,
        "teacher_temperature": 0.04,
    },
    lr=0.05,
    weight_decay=1e-4,
    decay_norm_and_bias=False,
    linear=replace(IMAGENET, resize=256),
    # and Table 9: mAP of linear SVMs on VOC07, of so many labels per class
    paper={"linear": 69.9, "svm voc07 16": 79.17, "svm voc07 32": 81.96, "svm voc07 64": 83.81, "svm voc07 all": 86.31},
)

IMAGENET_R18 = replace(
    IMAGENET_R50,
    name="imagenet-r18",
    summary="ImageNet, 224 px, ResNet-18",
    backbone="resnet18",
    paper={"linear": 58.1},
)

# The paper's student crops: size -> share of the area. All are matched with the one weak teacher view.
_CROPS = {224: (0.2, 1.0), 192: (0.172, 0.86), 160: (0.143, 0.715), 128: (0.114, 0.571), 96: (0.086, 0.429)}


def _crops(*sizes: int) -> tuple[View, ...]:
    return (IMAGENET_R50.views[0], *(replace(STRONG, size=size, crop=_CROPS[size]) for size in sizes))


IMAGENET_R50_4CROPS = replace(
    IMAGENET_R50,
    name="imagenet-r50-4crops",
    summary="ImageNet, 224 px, ResNet-50, student crops of 224, 160, 128 and 96 px",
    views=_crops(224, 160, 128, 96),
    paper={"linear": 73.8},
)

IMAGENET_R50_5CROPS = replace(
    IMAGENET_R50,
    name="imagenet-r50-5crops",
    summary="ImageNet, 224 px, ResNet-50, student crops of 224, 192, 160, 128 and 96 px",
    views=_crops(224, 192, 160, 128, 96),
    paper={"linear": 74.7},
)

PAPER = (CIFAR10, CIFAR100, STL10, TINY_IMAGENET, IMAGENET_R50, IMAGENET_R50_4CROPS, IMAGENET_R50_5CROPS, IMAGENET_R18)
