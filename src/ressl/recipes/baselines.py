"""What each method trains with, where that differs from ReSSL: ``ressl pretrain cifar10 --method byol``.

From the paper's appendix for the five of its Table 1, else from the methods' own papers, scaled to small pictures.
Everything that is not named here stays as the recipe has it: data, backbone, batch, epochs, and the options that a
method shares with ReSSL (head, queue, momentum).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ressl.data.views import View

if TYPE_CHECKING:  # a recipe reads this file, not the other way round
    from ressl.recipes.recipe import Recipe


@dataclass(frozen=True)
class Crop:
    """A view in terms of the recipe's own: which of them, how large beside it, and what else differs."""

    of: str = "strong"  # weak: the recipe's first view; strong: its second
    share: float = 1.0  # of the recipe's image size
    changes: Mapping[str, Any] = field(default_factory=dict)

    def view(self, weak: View, strong: View, image_size: int) -> View:
        base = weak if self.of == "weak" else strong
        view = replace(base, size=max(1, round(self.share * image_size)), **self.changes)
        return replace(view, pad=image_size // 8) if view.pad else view  # 4 px of 32


@dataclass(frozen=True)
class Baseline:
    views: tuple[Crop, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the recipe
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method


STRONG = Crop()
PAIR = (STRONG, STRONG)
CROP_AND_FLIP = Crop("weak", changes={"crop": None, "pad": 4})
STRONGER = {"randaugment": 5, "randaugment_magnitude": (0.0, 1.0), "jitter": 0.0, "gray": 0.0, "blur": 0.0}

COSINE = {"schedule": "cosine", "lr": 0.2}
# The appendix: LARS 0.9, weight decay 1e-4, lr 1.0 per 256 samples; the classifier by a cosine from 0.2.
LARS = {"optimiser": "lars", "lr": 1.0, "weight_decay": 1e-4, "linear": COSINE}
ONE_GROUP = {"bn_groups": 1}  # statistics of the whole batch: no key to leak to

BASELINES: dict[str, Baseline] = {
    "ressl": Baseline((Crop("weak"), STRONG), options={"student_temperature": 0.1, "teacher_temperature": 0.04}),
    # The five of Table 1
    "moco-v2": Baseline(PAIR, options={"temperature": 0.2}),
    "simclr": Baseline(PAIR, LARS | ONE_GROUP, {"hidden_dim": 512, "output_dim": 128, "temperature": 0.1}),
    "byol": Baseline(PAIR, LARS | ONE_GROUP, {"hidden_dim": 4096, "output_dim": 256, "teacher_momentum": 0.99}),
    "simsiam": Baseline(PAIR, ONE_GROUP, {"output_dim": 2048, "predictor_dim": 512}),
    "supervised": Baseline((CROP_AND_FLIP,), ONE_GROUP | {"lr": 0.1}),
    # The rest of its tables
    "swav": Baseline(
        (*PAIR, *[Crop(share=0.5, changes={"crop": (0.1, 0.3)})] * 4),
        ONE_GROUP | {"optimiser": "lars", "lr": 0.6, "weight_decay": 1e-6, "linear": COSINE},
        {"queue_size": 3840},
    ),
    "instdisc": Baseline((STRONG,), ONE_GROUP | {"lr": 0.03}),
    # Clusters of what has hardly learned to tell pictures apart pull them all together: the embeddings collapse.
    "localagg": Baseline((STRONG,), ONE_GROUP | {"lr": 0.03}, {"cluster_from": 0.5}),
    "mochi": Baseline(PAIR, options={"temperature": 0.2}),
    "cpc-v2": Baseline((Crop("weak"),), ONE_GROUP | {"lr": 0.12}, {"hidden_dim": 256, "output_dim": 64}),
    "pcl-v2": Baseline(PAIR, options={"temperature": 0.2}),
    "adco": Baseline((STRONG, Crop(changes=STRONGER)), options={"temperature": 0.12}),  # the key, the query
    "clsa": Baseline((*PAIR, Crop(changes=STRONGER)), options={"temperature": 0.2}),
    # 224, 192, 160, 128 and 96 px of 224
    "clsa-multi": Baseline(
        (*PAIR, *(Crop(share=size / 224, changes=STRONGER) for size in (224, 192, 160, 128, 96))),
        options={"temperature": 0.2},
    ),
    "seed": Baseline((STRONG,), options={"student_temperature": 0.2, "teacher_temperature": 0.01}),
}

# Short runs on generated pictures: smaller heads and steadier learning rates, and a batch norm in the plain heads.
_SMALL_LARS = {"lr": 20.0, "warmup_epochs": 1.0}  # a thousand steps of 0.1 % each would not get far
DEMO: dict[str, Baseline] = {
    "moco-v2": Baseline(options={"temperature": 0.1}),
    "simclr": Baseline(fields=_SMALL_LARS, options={"hidden_dim": 256, "output_dim": 64}),
    "byol": Baseline(
        fields=_SMALL_LARS | {"lr": 4.0}, options={"hidden_dim": 256, "output_dim": 64, "teacher_momentum": 0.95}
    ),
    "simsiam": Baseline(fields=_SMALL_LARS | {"lr": 10.0}, options={"output_dim": 256, "predictor_dim": 64}),
    "supervised": Baseline(fields={"lr": 0.1}),
    "swav": Baseline(
        fields=_SMALL_LARS,
        # Codes much sharper than predictions: views agree little at first, and prototypes that learn from codes that
        # cannot be predicted fall together.
        options={"hidden_dim": 256, "output_dim": 64, "prototypes": 32, "queue_size": 256, "epsilon": 0.02,
                 "output_batch_norm": True, "queue_from": 0.075},
    ),
    "instdisc": Baseline(fields={"lr": 0.12}, options={"output_dim": 64, "negatives": 1024}),
    "localagg": Baseline(
        fields={"lr": 0.12}, options={"output_dim": 64, "background": 512, "clusters": 100, "cluster_from": 0.25}
    ),
    "mochi": Baseline(options={"temperature": 0.1, "hardest": 64, "mixed": 64, "mixed_with_query": 16}),
    "cpc-v2": Baseline(fields={"lr": 0.5}, options={"hidden_dim": 64, "output_dim": 32}),
    "pcl-v2": Baseline(options={"temperature": 0.1, "granularities": (32, 64, 128), "cluster_from": 0.25}),
    "adco": Baseline(options={"negatives": 1024}),
    "clsa": Baseline(options={"temperature": 0.1, "divergence": 0.2}),
    "clsa-multi": Baseline(options={"temperature": 0.1, "divergence": 0.2}),
    "seed": Baseline(options={"teacher_backbone": "resnet10", "teacher_stem": "medium", "teacher_width": 16,
                              "teacher_hidden_dim": 256}),
}  # fmt: skip

SAMPLES = {
    **{"cifar10": 50_000, "cifar100": 50_000, "stl10": 105_000, "tiny-imagenet": 100_000},
    **{"imagenet": 1_281_167, "shapes": 4096},
}
CLASSES = {"cifar10": 10, "cifar100": 100, "stl10": 10, "tiny-imagenet": 200, "imagenet": 1000, "shapes": 8}

# The paper's linear top-1 by recipe: Table 1, then Tables 5 (200 epochs) and 7 (ResNet-18).
TABLES: dict[str, dict[str, float]] = {
    "ressl": {
        **{"cifar10": 90.20, "cifar100": 63.79, "stl10": 88.25, "tiny-imagenet": 46.60},
        **{"imagenet-r50": 69.9, "imagenet-r18": 58.1},
    },
    "moco-v2": {
        **{"cifar10": 86.18, "cifar100": 59.51, "stl10": 85.88, "tiny-imagenet": 43.36},
        **{"imagenet-r50": 67.5, "imagenet-r18": 52.2},
    },
    "simclr": {"cifar10": 84.92, "cifar100": 59.28, "stl10": 85.48, "tiny-imagenet": 44.38, "imagenet-r50": 66.8},
    "byol": {"cifar10": 85.82, "cifar100": 57.75, "stl10": 87.45, "tiny-imagenet": 42.70, "imagenet-r50": 70.6},
    "simsiam": {"cifar10": 88.51, "cifar100": 60.00, "stl10": 87.47, "tiny-imagenet": 37.04, "imagenet-r50": 70.0},
    "supervised": {"cifar10": 94.22, "cifar100": 74.66, "stl10": 82.55, "tiny-imagenet": 59.26, "imagenet-r50": 76.5},
    "swav": {"imagenet-r50": 69.1},
    "instdisc": {"imagenet-r50": 58.5},
    "localagg": {"imagenet-r50": 58.8},
    "mochi": {"imagenet-r50": 68.0},
    "cpc-v2": {"imagenet-r50": 63.8},
    "pcl-v2": {"imagenet-r50": 67.6},
    "adco": {"imagenet-r50": 68.6},
    "clsa": {"imagenet-r50": 69.4},
    "seed": {"imagenet-r18": 57.6},
}
# Table 6: ImageNet, ResNet-50, several crops.
MULTI_CROP = {"SwAV": 72.7, "AdCo": 73.2, "CLSA-Multi": 73.3, "ReSSL (4 crops)": 73.8, "ReSSL (5 crops)": 74.7}
# What a recipe is held against: that of SwAV has small crops, too.
PAPER = TABLES | {
    "swav": {"imagenet-r50": MULTI_CROP["SwAV"]},
    "clsa-multi": {"imagenet-r50": MULTI_CROP["CLSA-Multi"]},
}


# On all but ImageNet. There a batch has fewer samples than there are prototypes, and learns for a hundred times as many
# steps; here the queue's old embeddings, among few prototypes, would draw the codes together, and so do blunt ones.
FEW_PICTURES = {"swav": Baseline(fields={"lr": 4.0}, options={"epsilon": 0.03, "queue_from": 1.0})}

# On ImageNet, the sizes of the methods' own papers; those above, and their defaults, are for small pictures.
IMAGENET: dict[str, Baseline] = {
    "simsiam": Baseline(options={"projector_layers": 3}),
    "swav": Baseline(options={"hidden_dim": 2048, "output_dim": 128, "prototypes": 3000}),
    "instdisc": Baseline(options={"output_dim": 128}),
    "localagg": Baseline(options={"output_dim": 128, "clusterings": 10, "clusters": 30_000, "cluster_from": 0.05}),
    "mochi": Baseline(options={"hardest": 1024, "mixed": 1024, "mixed_with_query": 128}),
    "cpc-v2": Baseline((Crop("weak", share=8 / 7),)),  # 256 px of 224: 7 x 7 patches of 64 px
    "pcl-v2": Baseline(options={"granularities": (25_000, 50_000, 100_000)}),
    "adco": Baseline(options={"negatives": 65_536}),
}

# Photographs (the stem of ImageNet) are cropped at random: all of one, squeezed and shifted by a few pixels, is what is
# usual for CIFAR, and costs some points here.
PHOTOGRAPHS = {"supervised": (Crop("weak", changes={"crop": (0.08, 1.0)}),)}
WIDE = {"simclr": {"hidden_dim": 2048}}  # a head as wide as the features: those of a ResNet-50


def baseline(method: str, recipe: Recipe) -> Baseline:
    """The settings of a method for a recipe: the general ones, the demo's over them, and what depends on the data."""
    general = BASELINES.get(method, Baseline())
    if recipe.stem == "imagenet":
        general = replace(general, views=PHOTOGRAPHS.get(method, general.views))
    if recipe.data == "imagenet":  # where the paper evaluates all in one way, SwAV's; the recipe has it
        general = replace(general, fields={k: v for k, v in general.fields.items() if k != "linear"})
    if recipe.backbone == "resnet50":
        general = replace(general, options={**general.options, **WIDE.get(method, {})})
    own = (IMAGENET if recipe.data == "imagenet" else FEW_PICTURES).get(method, Baseline())
    demo = DEMO.get(method, Baseline()) if recipe.name == "demo" else Baseline()
    stride = recipe.image_size // (7 if recipe.data == "imagenet" else 4)
    of_data: dict[str, Any] = {"patch": 2 * stride, "stride": stride}  # every patch overlaps half of the next
    of_data |= {"teacher_stem": recipe.stem, "prototypes": 100}
    of_data |= {"bank_size": SAMPLES[recipe.data]} if recipe.data in SAMPLES else {}
    of_data |= {"num_classes": CLASSES[recipe.data]} if recipe.data in CLASSES else {}
    fields = {**general.fields, **own.fields, **demo.fields}
    options = {**of_data, **general.options, **own.options, **demo.options}
    return Baseline(own.views or general.views, fields, options)
