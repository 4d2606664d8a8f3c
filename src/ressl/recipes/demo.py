"""The demo: the whole method, small enough for two CPU cores and three minutes, on generated pictures."""

from __future__ import annotations

from dataclasses import replace

from ressl.data.views import STRONG, WEAK
from ressl.evaluation.linear import LinearProtocol
from ressl.recipes.recipe import Recipe

DEMO = Recipe(
    name="demo",
    summary="generated shapes, 32 px, slim ResNet-10, for the CPU",
    data="shapes",
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    views=(WEAK, replace(STRONG, jitter_order="fixed")),
    backbone="resnet10",
    stem="medium",
    width=32,
    bn_groups=4,
    options={"hidden_dim": 256, "output_dim": 64, "queue_size": 1024, "teacher_temperature": 0.04},
    epochs=20,
    batch_size=128,
    warmup_epochs=1.0,
    knn_every=2,
    knn_k=50,
    linear=LinearProtocol(schedule="cosine", lr=0.1, epochs=50, augment=False, standardize=True),
)
