"""A generated, labelled set of small pictures: the demo's data, and the tests'.

The class is what is drawn, several times over on a loose grid. Colour, brightness, texture, place, size, tilt and
background are drawn independently of it, mostly anew for every copy, and a copy is as often darker than its ground as
brighter. So two pictures of a class share no pixels, and raw pixels do badly; and two crops of one picture share what
is drawn and little else, which is what a method without labels has to find. (One large figure in strong colours was
tried first: there, colour tells pictures apart so well that nothing else is learned.)

Figures are signed distance functions, hence smooth edges at any size. Per pixel there is only arithmetic that IEEE
754 defines exactly (no sine, no exponential, no matrix product), so a seed gives the same bytes on any machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.base import ArraySource
from ressl.errors import unknown

Floats = NDArray[np.float32]
Distance = Callable[[Floats, Floats], Floats]  # below zero inside; the figure spans about -1..1

SIZE = 32
SPLITS = {"train": (4096, 1), "test": (1024, 2)}  # split -> how many, seed
_GRID = 12  # squares along the table of attributes: more than a picture shows
_SQUARE = (0.55, 0.7)  # the side of a square, where the picture's is 2
_CHUNK = 256  # pictures rendered at once: the working arrays stay in the cache
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def _disc(x: Floats, y: Floats) -> Floats:
    return np.sqrt(x * x + y * y) - np.float32(0.95)


def _ring(x: Floats, y: Floats) -> Floats:
    return np.abs(np.sqrt(x * x + y * y) - np.float32(0.72)) - np.float32(0.24)


def _crescent(x: Floats, y: Floats) -> Floats:
    bite = np.sqrt((x - np.float32(0.5)) ** 2 + y * y) - np.float32(0.72)
    return np.maximum(np.sqrt(x * x + y * y) - np.float32(1.0), -bite)


def _frame(x: Floats, y: Floats) -> Floats:
    side = np.maximum(np.abs(x), np.abs(y))
    return np.abs(side - np.float32(0.66)) - np.float32(0.2)


def _polygon(*corners: tuple[float, float]) -> Distance:
    points = np.array(corners, dtype=np.float32)

    def distance(x: Floats, y: Floats) -> Floats:
        nearest = np.full_like(x, np.inf)
        inside = np.zeros(x.shape, dtype=bool)
        for (ax, ay), (bx, by) in zip(points, np.roll(points, -1, axis=0), strict=True):
            ex, ey, px, py = bx - ax, by - ay, x - ax, y - ay
            along = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0, 1)
            nearest = np.minimum(nearest, (px - ex * along) ** 2 + (py - ey * along) ** 2)
            # Even-odd rule: a ray to the right crosses this edge.
            inside ^= ((py >= 0) != (y - by >= 0)) & ((px * ey - py * ex < 0) == (ey > 0))
        return np.where(inside, -np.sqrt(nearest), np.sqrt(nearest))

    return distance


_STAR = (
    *((0.0, -1.05), (0.265, -0.365), (0.999, -0.324), (0.428, 0.139), (0.617, 0.849)),
    *((0.0, 0.45), (-0.617, 0.849), (-0.428, 0.139), (-0.999, -0.324), (-0.265, -0.365)),
)
_CROSS = (
    *((-0.3, -1.0), (0.3, -1.0), (0.3, -0.3), (1.0, -0.3), (1.0, 0.3), (0.3, 0.3)),
    *((0.3, 1.0), (-0.3, 1.0), (-0.3, 0.3), (-1.0, 0.3), (-1.0, -0.3), (-0.3, -0.3)),
)

FIGURES: dict[str, Distance] = {
    "disc": _disc,
    "ring": _ring,
    "crescent": _crescent,
    "square": _polygon((-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)),
    "frame": _frame,
    "triangle": _polygon((0.0, -1.05), (1.0, 0.8), (-1.0, 0.8)),
    "cross": _polygon(*_CROSS),
    "star": _polygon(*_STAR),
}
CLASSES = list(FIGURES)


class _Draw:
    """Uniform numbers as float32. Only ``random`` of the bit generator is used: its stream is the stable one."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def __call__(self, low: float, high: float, *shape: int) -> Floats:
        unit = self._generator.random(shape, dtype=np.float32)
        return np.float32(low) + unit * np.float32(high - low)

    def sign(self, n: int) -> Floats:
        return np.where(self._generator.random(n) < 0.5, np.float32(-1), np.float32(1))

    def permutation(self, n: int) -> NDArray[np.int64]:
        return np.argsort(self._generator.random(n), kind="stable")

    def direction(self, n: int, turn: float) -> Floats:
        """Unit vectors within ``turn`` turns either side of the x axis: n x 2."""
        angle = self._generator.random(n) * 4 * np.pi * turn - 2 * np.pi * turn
        # Rounded, because the last bit of a cosine differs between machines.
        return np.round(np.stack([np.cos(angle), np.sin(angle)], 1), 6).astype(np.float32)


def _colour(draw: _Draw, brightness: Floats, strength: float) -> Floats:
    """Any hue at the given brightness: n x 3."""
    tint = draw(-strength, strength, len(brightness), 3)
    return brightness[:, None] + tint - (tint * _LUMA).sum(1, keepdims=True)


def _pattern(draw: _Draw, x: Floats, y: Floats) -> Floats:
    """Stripes or checks of any direction and width (triangle waves), -1..1; one of them fades into plain."""
    n = len(x)
    way = draw.direction(n, 0.5)[:, :, None, None]
    waves, phase = draw(1.0, 3.5, n, 1, 1), draw(0.0, 1.0, 2, n, 1, 1)
    one = np.abs(((way[:, 0] * x + way[:, 1] * y) * waves + phase[0]) % 2 - 1) * 2 - 1
    two = np.abs(((way[:, 1] * x - way[:, 0] * y) * waves + phase[1]) % 2 - 1) * 2 - 1
    kind = draw(0.0, 1.0, n, 1, 1)
    return np.where(kind < 0.4, one, np.where(kind < 0.7, one * two, np.float32(0)))


def _render(draw: _Draw, labels: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    n = len(labels)
    axis = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2 / size) - 1
    x, y = np.broadcast_arrays(axis[None, None, :], axis[None, :, None])
    x, y = np.repeat(x, n, 0), np.repeat(y, n, 0)  # n x size x size, -1..1

    # The figure is drawn several times, one per square of a grid that is itself turned, shifted and scaled at random.
    # ``of`` picks each pixel's value from a table with one row of attributes per square.
    side = draw(_SQUARE[0], _SQUARE[1], n, 1, 1)
    turn, shift = draw.direction(n, 0.5)[:, :, None, None], draw(0.0, 1.0, 2, n, 1, 1)
    across, down = (turn[:, 0] * x + turn[:, 1] * y) / side, (turn[:, 0] * y - turn[:, 1] * x) / side
    across, down = across + shift[0] + np.float32(_GRID / 2), down + shift[1] + np.float32(_GRID / 2)
    column, row = np.floor(across), np.floor(down)
    square = (row * _GRID + column).astype(np.int64) + (np.arange(n) * _GRID * _GRID)[:, None, None]
    of = lambda table: table[square]
    squares = n * _GRID * _GRID

    # In its square: size, place, tilt against the picture's own axes, and mirrored or not.
    radius = draw(0.66, 0.92, squares)
    centre = draw(-1.0, 1.0, 2, squares) * (np.float32(1.0) - radius)
    tilt = draw.direction(squares, 0.07)
    u, v = (across - column) * 2 - 1 - of(centre[0]), (down - row) * 2 - 1 - of(centre[1])
    u, v = turn[:, 0] * u - turn[:, 1] * v, turn[:, 1] * u + turn[:, 0] * v  # upright again
    cosine, sine = of(tilt[:, 0]), of(tilt[:, 1])
    radius, mirror = of(radius), of(draw.sign(squares))
    u, v = (cosine * u + sine * v) / radius * mirror, (cosine * v - sine * u) / radius
    distance = np.empty_like(u)
    for label, figure in enumerate(FIGURES.values()):
        chosen = labels == label
        distance[chosen] = figure(u[chosen], v[chosen])
    # A pixel is 2 / size wide, and the distance is in radii of side / 2: coverage falls over one pixel's width.
    cover = np.clip(np.float32(0.5) - distance * radius * side * np.float32(size / 4), 0, 1)[..., None]

    # Colours: the ground wanders around the middle, each figure is clearly darker or clearly brighter. They take turns
    # over the grid, so that the mean brightness of a picture, which is easy to learn, says little about which it is.
    ground = np.full((n, size, size, 3), 0.5, np.float32)
    for _ in range(5):  # soft blobs of light and colour
        spot, width = draw(-1.0, 1.0, 2, n, 1, 1), draw(0.2, 0.6, n, 1, 1)
        fall = 1 / (1 + ((x - spot[0]) ** 2 + (y - spot[1]) ** 2) / (width * width))
        ground += (fall * fall)[..., None] * _colour(draw, draw(-0.06, 0.06, n), 0.06)[:, None, None, :]
    ground += _pattern(draw, x, y)[..., None] * draw(-0.08, 0.08, n, 1, 1, 3)
    place = np.arange(_GRID)
    turns = np.where((place[:, None] + place) % 2, np.float32(1), np.float32(-1)).reshape(-1)
    sign = (draw.sign(n)[:, None] * turns).reshape(-1)
    paint = _colour(draw, np.float32(0.5) + draw(0.28, 0.42, squares) * sign, 0.1)
    shine = draw(-0.12, 0.12, squares)
    figure = of(paint) + (of(shine) * (_pattern(draw, u, v) + u))[..., None]

    picture = ground + cover * (figure - ground)
    picture += draw(-0.04, 0.04, n, size, size, 3)
    return (np.clip(picture, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)


def make_shapes(n: int, size: int = SIZE, seed: int = 0) -> tuple[Tensor, Tensor]:
    """``n`` pictures (n x 3 x size x size, uint8) and what they show (n, int64, an index into CLASSES).

    The classes are equally frequent (to within one picture) and come in random order.
    """
    draw = _Draw(seed)
    labels = (np.arange(n) % len(CLASSES))[draw.permutation(n)].astype(np.int64)
    pictures = np.empty((n, size, size, 3), dtype=np.uint8)
    for start in range(0, n, _CHUNK):
        part = slice(start, min(start + _CHUNK, n))
        pictures[part] = _render(draw, labels[part], size)
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def open_shapes(split: str = "train") -> ArraySource:
    if split not in SPLITS:
        raise unknown("split of shapes", split, SPLITS)
    n, seed = SPLITS[split]
    images, labels = make_shapes(n, SIZE, seed)
    return ArraySource("shapes", images, labels, CLASSES)
