"""Pictures inside a page: data addresses, and many small ones in one sheet."""

from __future__ import annotations

import base64
import io
import math

from PIL import Image
from torch import Tensor


def address(image: Tensor, quality: int = 82) -> str:
    """A uint8 picture 3 x H x W as a data address (WebP)."""
    return _encoded(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()), quality)


def sheet(images: Tensor, quality: int = 78) -> tuple[str, int]:
    """All of N x 3 x h x w in one picture, row by row: (data address, pictures per row)."""
    n, _, h, w = images.shape
    columns = max(1, math.ceil(math.sqrt(n)))
    page = Image.new("RGB", (columns * w, math.ceil(n / columns) * h))
    for i, image in enumerate(images):
        page.paste(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()), (i % columns * w, i // columns * h))
    return _encoded(page, quality), columns


def _encoded(image: Image.Image, quality: int) -> str:
    held = io.BytesIO()
    image.save(held, "WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(held.getvalue()).decode()
