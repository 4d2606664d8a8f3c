"""Pictures for the tests of the data rooms, in files and as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ressl.data.base import ArraySource, FileSource
from ressl.data.sources import open_source
from ressl.errors import ResslError


def pixels(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, seed: int = 0, height: int = 8, width: int = 8) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = pixels(seed, height, width)
    Image.fromarray(array).save(path)
    return array


def fails(*arguments: object, match: str, **options: object) -> None:
    """open_source must raise one sentence that mentions ``match``."""
    with pytest.raises(ResslError, match=match) as caught:
        open_source(*arguments, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def arrays(n: int, side: int = 8) -> ArraySource:
    draw = torch.Generator().manual_seed(n)
    images = torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=draw)
    return ArraySource("a", images, torch.arange(n) % 3, ["x", "y", "z"])


def smooth(index: int, height: int, width: int) -> np.ndarray:
    """A picture without noise, so that two ways of resizing it agree."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / 9 + index), np.cos(y / 7 + index), np.sin((x + y) / 11)]
    return np.stack([128 + 100 * wave for wave in waves], 2).astype(np.uint8)


def files(folder: Path, n: int, broken: tuple[int, ...] = (), size: tuple[int, int] | None = None) -> FileSource:
    paths = []
    for i in range(n):
        path = folder / f"{i:03d}.png"
        height, width = size or (24 + i % 5, 30 - i % 7)
        Image.fromarray(smooth(i, height, width)).save(path)
        if i in broken:
            path.write_bytes(path.read_bytes()[:60])
        paths.append(str(path))
    return FileSource("files", paths, torch.arange(n) % 4, list("abcd"))
