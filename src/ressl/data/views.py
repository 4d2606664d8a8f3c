"""Views: which augmentations an image goes through before a network sees it.

A ``View`` is the recipe of one view. It turns images and uniform numbers (one row per sample, one column per decision)
into pixels, and draws nothing itself. ``Views`` makes all views of a batch and takes those numbers from the hash of
(seed, step, sample, view), so a view is a pure function of where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ressl import rng
from ressl.data import augment
from ressl.errors import ResslError, unknown

# The columns of u that decide what. The place of a decision is fixed, whatever a view switches off, so that two views
# that differ in one setting still agree on everything else.
_CROP = slice(0, augment.BOX_COLUMNS)
_FLIP = augment.BOX_COLUMNS
_JITTER = _FLIP + 1  # whether
_FACTORS = slice(_JITTER + 1, _JITTER + 5)  # brightness, contrast, saturation, hue: how much
_WHEN = slice(_JITTER + 5, _JITTER + 9)  # ... and in which order
_GRAY = _JITTER + 9
_BLUR, _SIGMA = _GRAY + 1, _GRAY + 2
_SOLARIZE = _GRAY + 3
_PAD = slice(_SOLARIZE + 1, _SOLARIZE + 3)  # how far down and to the right
_ROUNDS = 5  # of RandAugment, at most
_RAND = slice(_SOLARIZE + 3, _SOLARIZE + 3 + 3 * _ROUNDS)  # which, how strong, which way


@dataclass(frozen=True)
class View:
    """One view, in this order: crop, flip, RandAugment, jitter, gray, blur, solarize. Bare words are probabilities."""

    size: int = 32
    crop: tuple[float, float] | None = (
        0.2,
        1.0,
    )  # share of the area that a random resized crop keeps; None: resize only
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0  # without a crop: pixels of black border from which a crop of the same size is taken
    flip: float = 0.5
    jitter: float = 0.0
    brightness: float = 0.4  # strengths as in torchvision's ColorJitter
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter_order: Literal["random", "fixed"] = "random"
    gray: float = 0.0
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # in pixels
    solarize: float = 0.0
    solarize_threshold: float = 0.5
    randaugment: int = 0  # operations, one after the other
    randaugment_magnitude: tuple[float, float] = (0.3, 0.3)  # range of their strength; 1 is the strongest

    COLUMNS: ClassVar[int] = _RAND.stop  # uniform numbers per sample
    PLACES: ClassVar[int] = _FLIP + 1  # of these, the first: all that a crop and a flip need

    def validate(self) -> None:
        """Raise the first thing that makes no sense."""
        if self.size < 1:
            raise ResslError(f"a view's size must be at least 1 pixel, not {self.size}.")
        for name in ("flip", "jitter", "gray", "blur", "solarize"):
            _in_range(f"probability '{name}'", getattr(self, name), 0, 1)
        for name in ("brightness", "contrast", "saturation"):
            _in_range(f"strength '{name}'", getattr(self, name), 0, math.inf)
        _in_range("strength 'hue'", self.hue, 0, 0.5)
        _in_range("'solarize_threshold'", self.solarize_threshold, 0, 1)
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ResslError(f"a view's crop must keep areas 0 < smallest <= largest <= 1, not {self.crop}.")
        for name in ("ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise ResslError(f"a view's {name} must be 0 < smallest <= largest, not {(low, high)}.")
        if not 0 <= self.randaugment <= _ROUNDS:
            raise ResslError(f"a view's randaugment must be 0 to {_ROUNDS} operations, not {self.randaugment}.")
        if not 0 <= self.randaugment_magnitude[0] <= self.randaugment_magnitude[1] <= 1:
            raise ResslError(f"a view's randaugment_magnitude must lie in 0 to 1, not {self.randaugment_magnitude}.")
        if self.pad < 0 or (self.pad and self.crop is not None):
            raise ResslError(
                f"a view's pad must be at least 0 and goes with crop=none, not pad {self.pad}, crop {self.crop}."
            )
        if self.jitter_order not in ("random", "fixed"):
            raise unknown("jitter order", self.jitter_order, ("random", "fixed"))

    def boxes(self, u: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor:
        """B x 4 int64 (top, left, height, width) in images of that size, one for all or one per sample."""
        if self.crop is None:
            return augment.full_boxes(len(u), height, width, u.device)
        return augment.crop_boxes(u[:, _CROP], height, width, self.crop, self.ratio)

    def window(self, height: Tensor, width: Tensor) -> tuple[int, int]:
        """The height and width that hold any of this view's boxes in images of these sizes (N each)."""
        if self.crop is None:
            return int(height.max()), int(width.max())
        return augment.crop_window(height, width, self.crop, self.ratio)

    def flips(self, u: Tensor) -> Tensor:
        """B bool: who is mirrored."""
        return u[:, _FLIP] < self.flip

    def geometry(self, images: Tensor, u: Tensor) -> Tensor:
        """Crop, resize and flip: B x 3 x H x W -> B x 3 x size x size."""
        boxes = self.boxes(u, *images.shape[-2:])
        if self.pad:
            return self.finish_geometry(augment.crop_resize(images, boxes, self.size), u)
        return augment.crop_resize(images, boxes, self.size, self.flips(u) if self.flip else None)

    def finish_geometry(self, crops: Tensor, u: Tensor) -> Tensor:
        """What is left to do with crops of the right size: the padded crop, and the flip."""
        if self.pad:
            offsets = (u[:, _PAD] * (2 * self.pad + 1)).floor().long() - self.pad
            crops = augment.pad_crop(crops, offsets)
        return augment.flip(crops, self.flips(u)) if self.flip else crops

    def photometric(self, images: Tensor, u: Tensor) -> Tensor:
        """RandAugment, jitter, gray, blur and solarize; the size stays."""
        images = augment.to_float(images)
        if self.randaugment:
            which, strength, way = (part[:, : self.randaugment] for part in u[:, _RAND].chunk(3, 1))
            low, high = self.randaugment_magnitude
            operations = (which * len(augment.OPERATIONS)).long()
            images = augment.rand_augment(images, operations, low + (high - low) * strength, way < 0.5)
        if self.jitter:
            on = u[:, _JITTER] < self.jitter
            draws = u[:, _FACTORS].unbind(1)
            strengths = (self.brightness, self.contrast, self.saturation, self.hue)
            ranges = [(max(0.0, 1 - s), 1 + s) for s in strengths[:3]] + [(-self.hue, self.hue)]
            brightness, contrast, saturation, hue = (
                torch.where(on, low + (high - low) * draw, neutral)
                for (low, high), draw, neutral in zip(ranges, draws, (1, 1, 1, 0), strict=True)
            )
            when = u[:, _WHEN] if self.jitter_order == "random" else None
            images = augment.color_jitter(images, brightness, contrast, saturation, hue, when)
        if self.gray:
            images = augment.grayscale(images, u[:, _GRAY] < self.gray)
        if self.blur:
            low, high = self.blur_sigma
            # The authors blur with PIL, which does not cut the kernel. Three sigma hold 99.7 % of it: 13 taps for 2 px.
            kernel_size = 2 * math.ceil(3 * high) + 1
            sigma = low + (high - low) * u[:, _SIGMA]
            images = augment.gaussian_blur(images, sigma, kernel_size, u[:, _BLUR] < self.blur)
        if self.solarize:
            images = augment.solarize(images, self.solarize_threshold, u[:, _SOLARIZE] < self.solarize)
        return images

    @property
    def strong(self) -> bool:
        """Whether it changes more than crop and flip do."""
        return any((self.randaugment, self.jitter, self.gray, self.blur, self.solarize))

    def weakened(self) -> View:
        """Its crop and flip alone."""
        return replace(self, randaugment=0, jitter=0.0, gray=0.0, blur=0.0, solarize=0.0)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """B x 3 x H x W and B x COLUMNS -> B x 3 x size x size, float32 in [0, 1]."""
        return self.photometric(self.geometry(images, u), u)


WEAK = View()  # the paper's teacher
STRONG = View(jitter=0.8, gray=0.2, blur=0.5)  # the paper's student
_NONE = View(crop=None, flip=0.0)

_NAMED = {"weak": WEAK, "strong": STRONG, "none": _NONE}
# What a word of "crop+flip+..." switches on: the strong view's setting. The paper does not solarize; 0.2 is BYOL's.
_WORDS: dict[str, dict[str, object]] = {
    "crop": {"crop": STRONG.crop},
    "flip": {"flip": STRONG.flip},
    "jitter": {"jitter": STRONG.jitter},
    "gray": {"gray": STRONG.gray},
    "blur": {"blur": STRONG.blur},
    "solarize": {"solarize": 0.2},
    "pad": {"pad": 4},
    "rand": {"randaugment": 2},
}


def parse_view(text: str, base_size: int) -> View:
    """'weak', 'strong', 'none' (resize only), or words joined by '+': crop, flip, jitter, gray, blur, solarize, ..."""
    if text in _NAMED:
        return replace(_NAMED[text], size=base_size)
    view = replace(_NONE, size=base_size)
    for word in text.split("+"):
        if word.strip() not in _WORDS:
            raise unknown("view", word.strip(), [*_WORDS] if "+" in text else [*_NAMED, *_WORDS])
        view = replace(view, **_WORDS[word.strip()])  # type: ignore[arg-type]
    return view


def describe(view: View) -> str:
    """One line for people: '32 px: crop 0.2-1, flip 50 %, jitter 80 % (0.4 0.4 0.4 0.1), gray 20 %'."""
    parts = ["resize" if view.crop is None else f"crop {view.crop[0]:g}-{view.crop[1]:g}"]
    if view.pad:
        parts.append(f"crop from a border of {view.pad} px")
    if view.randaugment:
        low, high = view.randaugment_magnitude
        parts.append(f"RandAugment {view.randaugment} x ({low:g}-{high:g})")
    strengths = f"{view.brightness:g} {view.contrast:g} {view.saturation:g} {view.hue:g}"
    notes = {
        "jitter": f" ({strengths}{', fixed order' if view.jitter_order == 'fixed' else ''})",
        "blur": f" (sigma {view.blur_sigma[0]:g}-{view.blur_sigma[1]:g})",
        "solarize": f" (from {view.solarize_threshold:g})",
    }
    for name in ("flip", "jitter", "gray", "blur", "solarize"):
        if probability := getattr(view, name):
            parts.append(f"{name} {100 * probability:g} %{notes.get(name, '')}")
    return f"{view.size} px: {', '.join(parts)}"


def normalize(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """(images - mean) / std per channel; mean and std as three numbers or as 1 x 3 x 1 x 1 tensors."""
    return (augment.to_float(images) - _channels(mean, images)) / _channels(std, images)


class Views:
    """All views of a batch, normalised; a pure function of (seed, step, rows)."""

    def __init__(self, views: Sequence[View], mean: Sequence[float], std: Sequence[float], seed: int | Tensor) -> None:
        for view in views:
            view.validate()
        self.views, self.mean, self.std, self.seed = tuple(views), tuple(mean), tuple(std), seed
        self._bare = tuple(view.weakened() for view in views)  # a weak and a strong view are cut alike

    def draws(self, step: int | Tensor, rows: Tensor, columns: int = View.COLUMNS) -> Tensor:
        """For each view B x COLUMNS uniforms or the first few; a loader's worker takes its boxes from the same ones."""
        return rng.uniforms(self.seed, step, rows, columns, rng.VIEWS, len(self.views))  # V x B x COLUMNS

    def __call__(self, images: Tensor, step: int | Tensor, rows: Tensor) -> list[Tensor]:
        """Images B x 3 x H x W whose places in the global batch are ``rows`` (B, int64) -> one tensor per view."""
        draws = self.draws(step, rows)
        every = images.expand(len(self.views), *images.shape)  # V x B x 3 x H x W, no copy
        cut = lambda view, alike: view.geometry(_of(every, alike), _of(draws, alike))
        return self._finished(_by_kind(self._bare, cut), draws)

    def finish(self, crops: Sequence[Tensor], step: int | Tensor, rows: Tensor) -> list[Tensor]:
        """The rest, for crops (one tensor per view) that a worker cut and resized but did not flip."""
        draws = self.draws(step, rows)
        cut = lambda view, alike: view.finish_geometry(_of(crops, alike), _of(draws, alike))
        return self._finished(_by_kind(self._bare, cut), draws)

    def _finished(self, crops: Sequence[Tensor], draws: Tensor) -> list[Tensor]:
        coloured = lambda view, alike: view.photometric(_of(crops, alike), _of(draws, alike))
        return _by_kind(self.views, lambda view, alike: normalize(coloured(view, alike), self.mean, self.std))


def _by_kind(views: Sequence[View], make: Callable[[View, list[int]], Tensor]) -> list[Tensor]:
    """A tensor for each view, those of one kind made in one go: half the work to compile where there are two."""
    found: dict[int, Tensor] = {}
    for view in dict.fromkeys(views):
        alike = [v for v, other in enumerate(views) if other == view]
        found |= zip(alike, make(view, alike).chunk(len(alike)), strict=True)
    return [found[v] for v in range(len(views))]


def _of(each: Sequence[Tensor] | Tensor, which: list[int]) -> Tensor:
    """Those of some views, one after the other."""
    first, last = which[0], which[-1]
    if isinstance(each, Tensor) and last - first + 1 == len(which):  # as they lie; to join them is more to compile
        return each[first : last + 1].flatten(0, 1)
    return torch.cat([each[v] for v in which]) if len(which) > 1 else each[first]


def _channels(values: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """1 x 3 x 1 x 1; filled on the device, because a copy from the host would break a captured graph."""
    if isinstance(values, Tensor):
        return values
    return torch.cat([torch.full((1, 1, 1, 1), float(v), device=like.device) for v in values], 1)


def _in_range(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        limits = f"between {low} and {high}" if high < math.inf else f"at least {low}"
        raise ResslError(f"a view's {what} must be {limits}, not {value}.")
