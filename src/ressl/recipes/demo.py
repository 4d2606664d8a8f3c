"""The demo: the whole method, small enough for two CPU cores and three minutes, on generated pictures."""

from __future__ import annotations

from dataclasses import replace

from ressl.data.views import STRONG, WEAK
from ressl.evaluation.linear import LinearProtocol
from ressl.recipes.recipe import Recipe

# What differs from the paper's recipes, and why: a thousand steps are too few for the paper's head, whose embeddings
# first have to spread (docs/RECIPES.md). Batch norm in the head, a sharper target and a faster teacher get there.
DEMO = Recipe(
    name="demo",
    summary="generated shapes, 32 px, slim ResNet-10, for the CPU",
    data="shapes",
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    views=(WEAK, replace(STRONG, jitter_order="fixed", saturation=0.8, hue=0.5, gray=0.4)),
    backbone="resnet10",
    stem="medium",
    width=16,
    bn_groups=4,
    options={
        "hidden_dim": 256,
        "output_dim": 64,
        "queue_size": 1024,
        "teacher_momentum": 0.95,
        "student_temperature": 0.1,
        "teacher_temperature": 0.01,
        "head_batch_norm": True,
    },
    epochs=16,
    batch_size=64,
    lr=0.24,
    warmup_epochs=1.0,
    knn_every=2,
    knn_k=50,
    linear=LinearProtocol(schedule="cosine", lr=0.1, epochs=50, augment=False, standardize=True),
)
