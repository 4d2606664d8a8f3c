"""How fast a folder of pictures becomes a file of features."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from ressl.bench.steps import pictures
from ressl.data.base import ArraySource
from ressl.data.reading import pack
from ressl.data.sources import open_source
from ressl.embedding import embed
from ressl.encoder import Encoder
from ressl.errors import ResslError
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method
from ressl.transform import Transform


def embed_speed(recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Seconds from the first picture in memory to the file of all features, once the model is ready.

    Of the recipe's own pictures, where they are on this machine and of its size; else of random ones.
    """
    most = min(50_000 if device.type == "cuda" else 512, 10**9 // (3 * recipe.image_size**2))
    found_here = _own_pictures(recipe, most)
    data = pictures(most, recipe.image_size) if found_here is None else found_here
    images, count = data.images.permute(0, 2, 3, 1).contiguous().numpy(), len(data.images)
    backbone = build_method(recipe).backbone.eval()
    transform = Transform(recipe.image_size, recipe.image_size, recipe.mean, recipe.std)
    encoder = Encoder((backbone, transform), str(device))
    embed(encoder, images[:512])  # the card's own start-up
    with tempfile.TemporaryDirectory() as folder:
        found = embed(encoder, images, Path(folder, "features.npy"))
    whose = "random" if found_here is None else recipe.data
    return {"data": whose, "pictures": count, "side": recipe.image_size, "dim": found.dim,
            "seconds": round(found.seconds, 3), "images_per_second": round(count / found.seconds, 1)}  # fmt: skip


def _own_pictures(recipe: Recipe, most: int) -> ArraySource | None:
    with contextlib.suppress(ResslError):
        source = open_source(recipe.data, "train", download=False)
        if source.size == (recipe.image_size,) * 2:
            packed, _ = pack(source)
            return ArraySource(source.name, packed.images[:most])
    return None
