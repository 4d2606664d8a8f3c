"""Random views of pictures, and what a folded network's first layer makes of them, by one kernel (Triton).

A view that only cuts, enlarges and mirrors takes each of its values from two pixels a side. Plain operations write it
down several times on the way: as numbers of four bytes, normalised, shifted nine times, side by side. Here the bytes of
the pictures are read, and what the network goes on with is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ressl.data.views import View, Views
from ressl.engine.folding import Folded
from ressl.engine.launching import launch

PIXELS, VALUES = 256, 1024  # of a program, where a row is no longer: it writes so many pixels, and makes so many values


@triton.jit
def _between(out, start, length, SIZE: tl.constexpr):
    """The two pixels of an axis between which output ``out`` lies, and how near it is to the second.

    Beyond the border of the interval lies the pixel at the border once more.
    """
    place = (out.to(tl.float32) + 0.5) * (length.to(tl.float32) / SIZE) - 0.5
    before = tl.floor(place)
    first = before.to(tl.int32)
    return start + tl.maximum(first, 0), start + tl.minimum(first + 1, length - 1), place - before


@triton.jit
def _seen(image_ptr, box_ptr, flip, scale_ptr, y, x, c, inside, H, W, SIZE: tl.constexpr):
    """One picture's view at row y, column x and channel c, normalised; 0 where not ``inside``."""
    top, left = tl.load(box_ptr).to(tl.int32), tl.load(box_ptr + 1).to(tl.int32)
    height, width = tl.load(box_ptr + 2).to(tl.int32), tl.load(box_ptr + 3).to(tl.int32)
    y0, y1, down = _between(y, top, height, SIZE)
    x0, x1, right = _between(tl.where(flip, SIZE - 1 - x, x), left, width, SIZE)
    upper, lower = (c * H + y0) * W, (c * H + y1) * W
    a = tl.load(image_ptr + upper + x0, mask=inside, other=0).to(tl.float32)
    b = tl.load(image_ptr + upper + x1, mask=inside, other=0).to(tl.float32)
    a += right * (b - a)
    b = tl.load(image_ptr + lower + x0, mask=inside, other=0).to(tl.float32)
    b += right * (tl.load(image_ptr + lower + x1, mask=inside, other=0).to(tl.float32) - b)
    a += down * (b - a)
    scale = tl.load(scale_ptr + c, mask=inside, other=0.0)
    return a * scale + tl.load(scale_ptr + 3 + c, mask=inside, other=0.0)


@triton.jit
def _look(
    images_ptr, index_ptr, boxes_ptr, flips_ptr, scale_ptr, weight_ptr, bias_ptr, out_ptr, H, W, SIZE: tl.constexpr,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, STEM: tl.constexpr, PADDED: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """Some rows of one sample's view, channels last: the pixels, or the STEM channels that a 3 x 3 stem makes."""
    parts = tl.cdiv(SIZE, ROWS)
    i = tl.program_id(0) // parts
    first = (tl.program_id(0) % parts) * ROWS
    image_ptr, box_ptr = images_ptr + tl.load(index_ptr + i) * (3 * H * W), boxes_ptr + 4 * i
    flip = tl.load(flips_ptr + i)
    p = tl.arange(0, PIXELS)[:, None]
    c = tl.arange(0, CHANNELS)[None, :]
    mine = (p < ROWS * SIZE) & (first * SIZE + p < SIZE * SIZE)
    begin = (i.to(tl.int64) * SIZE + first) * SIZE + p  # pixels in the result
    if STEM:
        # Each value is made once, with a border of zeros, and read nine times. The channels of three neighbours in a
        # row lie side by side, as they do in the columns of the stem's weight.
        WIDE: tl.constexpr = 3 * (SIZE + 2)
        v = tl.arange(0, VALUES)
        y, x = first + v // WIDE - 1, v % WIDE // 3 - 1
        inside = (y >= 0) & (y < SIZE) & (x >= 0) & (x < SIZE)
        values = _seen(image_ptr, box_ptr, flip, scale_ptr, y, x, v % 3, inside, H, W, SIZE)
        q = tl.minimum(p, ROWS * SIZE - 1)
        place = (q // SIZE + tl.minimum(c // 9, 2)) * WIDE + q % SIZE * 3 + c % 9
        kind = out_ptr.dtype.element_ty
        columns = tl.gather(values.to(kind), tl.reshape(place, (PIXELS * CHANNELS,)), 0)
        columns = tl.where(c < 27, tl.reshape(columns, (PIXELS, CHANNELS)), 0.0).to(kind)
        o = tl.arange(0, PADDED)[None, :]
        weight = tl.load(weight_ptr + o * CHANNELS + tl.arange(0, CHANNELS)[:, None], mask=o < STEM, other=0.0)
        result = tl.dot(columns, weight, input_precision="ieee") + tl.load(bias_ptr + o, mask=o < STEM, other=0.0)
        tl.store(out_ptr + begin * STEM + o, tl.maximum(result, 0.0).to(kind), mask=mine & (o < STEM))
    else:
        result = _seen(
            image_ptr, box_ptr, flip, scale_ptr, first + p // SIZE, p % SIZE, c, mine & (c < 3), H, W, SIZE
        )  # fmt: skip
        tl.store(out_ptr + begin * CHANNELS + c, result.to(out_ptr.dtype.element_ty), mask=mine)


class Looking:
    """The first of ``views`` of ``images`` (uint8 N x 3 x H x W) as :meth:`ressl.engine.folding.Folded.prepare` has it.

    It must be a view for which :func:`can_look`.
    """

    def __init__(self, views: Views, images: Tensor, net: Folded) -> None:
        self.views, self.images, self.net = views, images.contiguous(), net
        mean, std = (torch.tensor(three, dtype=torch.float64) for three in (views.mean, views.std))
        # (x / 255 - mean) / std as one product and one sum
        self.scale = torch.stack((1 / (255 * std), -mean / std)).to(images.device, torch.float32)

    def __call__(self, out: Tensor, index: Tensor, step: Tensor, rows: Tensor) -> None:
        """Write the views of the pictures of those numbers, whose places in the global batch are ``rows``."""
        view, u = self.views.views[0], self.views.draws(step, rows, View.PLACES)[0]
        self.write(out, index, view.boxes(u, *self.images.shape[-2:]), view.flips(u))

    def write(self, out: Tensor, index: Tensor, boxes: Tensor, flips: Tensor) -> None:
        """The same, from boxes (B x 4, int64) and who is mirrored (B, bool)."""
        (B, _, size, _), (H, W), stem = out.shape, self.images.shape[-2:], self.net.stem
        assert len(index) == len(boxes) == len(flips) == B  # the kernel would read whatever lies behind
        assert out.is_contiguous(memory_format=torch.channels_last)
        grid, tile = _pieces(B, size, 1 if self.net.columns else 0)
        made = len(stem.bias) if self.net.columns else 0
        launch(
            _look, grid, self.images, index, boxes.contiguous(), flips.contiguous(), self.scale, stem.weight, stem.bias,
            out, H, W, SIZE=size, CHANNELS=stem.weight.shape[1], STEM=made,
            PADDED=triton.next_power_of_2(max(16, made)), **tile,  # a product has 16 columns at least
        )  # fmt: skip


def _pieces(B: int, size: int, border: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid and the tile: as many rows of a view as fit, and one at least."""
    values = lambda rows: 3 * (rows + 2 * border) * (size + 2 * border)
    fits = lambda rows: rows * size <= PIXELS and values(rows) <= VALUES
    rows = max((n for n in range(1, size + 1) if fits(n)), default=1)
    made = triton.next_power_of_2(values(rows))
    tile = {"ROWS": rows, "PIXELS": triton.next_power_of_2(rows * size), "VALUES": made}
    # A thread that made more than eight values, or two pixels of a stem, would need too many registers.
    return (B * triton.cdiv(size, rows),), tile | {"num_warps": min(max(made // 256, 8 if border else 4), 32)}


def can_look(view: View, images: Tensor) -> bool:
    """Whether the kernel makes such views: cut and mirrored only, and never made smaller, which takes more pixels."""
    plain = not view.strong and not view.pad
    return plain and images.dtype == torch.uint8 and max(images.shape[-2:]) <= view.size
