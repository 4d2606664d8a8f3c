"""How fast a folder of pictures becomes a file of features."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from ressl.bench.steps import pictures
from ressl.embedding import embed
from ressl.encoder import Encoder
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method
from ressl.transform import Transform


def embed_speed(recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Seconds from the first picture in memory to the file of all features, once the model is ready."""
    count = 50_000 if device.type == "cuda" else 512
    count = min(count, 10**9 // (3 * recipe.image_size**2))
    images = pictures(count, recipe.image_size).images.permute(0, 2, 3, 1).contiguous().numpy()
    backbone = build_method(recipe).backbone.eval()
    transform = Transform(recipe.image_size, recipe.image_size, recipe.mean, recipe.std)
    encoder = Encoder((backbone, transform), str(device))
    embed(encoder, images[:512])  # the card's own start-up
    with tempfile.TemporaryDirectory() as folder:
        found = embed(encoder, images, Path(folder, "features.npy"))
    return {"pictures": count, "side": recipe.image_size, "dim": found.dim, "seconds": round(found.seconds, 3),
            "images_per_second": round(count / found.seconds, 1)}  # fmt: skip
