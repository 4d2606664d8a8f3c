"""The look at data from which a recipe is chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ressl.data.base import ArraySource, FileSource
from ressl.errors import ResslError
from ressl.surveying import survey


def test_the_statistics_are_those_of_the_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (40, 3, 6, 9), dtype=np.uint8)
    found = survey(ArraySource("a", torch.from_numpy(pixels)), on_gpu=False)
    assert (found.count, found.short_side) == (40, 6)
    assert found.mean == pytest.approx((pixels / 255).mean((0, 2, 3)), abs=1e-4)
    assert found.std == pytest.approx((pixels / 255).std((0, 2, 3)), abs=1e-4)


def test_pictures_that_cannot_be_read_are_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"nothing")
    with pytest.raises(ResslError, match=r"none of the 1 pictures looked at .*the first: .*a\.png: .+\); mend them"):
        survey(FileSource("folder", [str(path)]), on_gpu=False)
