"""Features on the GPU: those of the CPU, and fast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from ressl.embedding import embed
from ressl.encoder import Encoder
from ressl.loading import Transform
from ressl.nn import build_backbone

CIFAR = Transform(32, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_backbone("resnet18", "small").eval()


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.99999), ("bf16", 0.999)])
def test_the_gpu_gives_the_cpu_s_features(precision: str, least: float) -> None:
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    reference = Encoder((model(), CIFAR), "cpu")(images)
    ours = Encoder((model(), CIFAR), "cuda", precision)(images).cpu()
    assert ours.dtype == torch.float32
    assert cosine_similarity(ours, reference).min() > least


def test_fifty_thousand_small_pictures_take_less_than_five_seconds(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    encoder = Encoder((model(), CIFAR), "cuda")
    embed(encoder, images[:512])  # CUDA's own start-up
    found = embed(encoder, images, tmp_path / "features.npy")
    assert found.features.shape == (50_000, 512)
    print(f"{found.seconds:.2f} s")
    assert found.seconds < 5
