"""Picture files in, RGB pixels out. Files come from anywhere: whatever is wrong with one becomes a BrokenImage."""

from __future__ import annotations

import io
import os
import warnings
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ressl.errors import ResslError, printable
from ressl.files import open_regular

# Only these readers may look at a file, whatever its name says: Pillow's EPS reader, for one, starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")

# A small file can declare a huge picture (a decompression bomb). 128 megapixels pass every camera in use and keep
# one decode below a gigabyte. Pillow's own limit only warns at first; ours is checked before any pixel is decoded.
PIXEL_LIMIT = 128_000_000
# More than 16 megapixels must come from a file of some size: photographs have 1 to 20 pixels per byte, bombs thousands.
_SMALL = 16_000_000
_PIXELS_PER_BYTE = 64
# A line of pixels is no picture: brought to a usual height, it would be as long as a bomb.
_LONG, _TIMES = 10_000, 100
# A progressive JPEG is decoded once per scan. Cameras and editors write about ten; a small file can hold thousands.
_SCANS = 12
_SCANNED = 500_000_000  # pixels times scans, for files with more than those
# Nor are its remarks on odd metadata wanted, one per file: what cannot be read is listed, the rest is fine.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Readers take whole files, or whole parts of them, into memory. Pixels of the size above, not packed, take 384 MB.
SIZE_LIMIT = 512 << 20
_HEADER = 128 << 20  # of which bytes before the pixels; WebP is taken whole
_READS = 500_000  # of one file; a large PNG in small pieces takes 150,000

_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = {5, 6, 7, 8}


def shown(name: str | os.PathLike[str]) -> str:
    """A file name fit for a one-line message."""
    return printable(os.fspath(name))


class BrokenImage(ResslError):
    """A picture that cannot be read: skipped, counted and listed by those who read many."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both in args, so that it survives the way from a worker process
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.reason}"


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not a picture (of the formats " + ", ".join(FORMATS) + ")"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    return shown(f"{type(error).__name__}: {error}")[:200]


class _Patience(io.BufferedReader):
    """A file that gives so much and no more: readers look for the next part byte by byte, or take it whole."""

    reads, header = _READS, _HEADER
    opened = False  # what is read until then is the header

    def read(self, size: int | None = -1) -> bytes:
        self.reads -= 1
        if not self.opened:
            size = self.header + 1 if size is None or size < 0 else min(size, self.header + 1)
        found = super().read(size)
        self.header -= 0 if self.opened else len(found)
        if self.reads < 0 or self.header < 0:
            raise ValueError("a header without end")
        return found


class Picture:
    """An opened file: its size is known before its pixels are decoded. Use it in a ``with``."""

    def __init__(self, path: str, data: bytes | None = None) -> None:
        """The file at ``path``, or ``data`` that is called so."""
        self.path = path
        self._file: BinaryIO | None = None
        try:
            raw: Any = open_regular(path).detach() if data is None else io.BytesIO(data)  # type: ignore[attr-defined]
            self._file = file = _Patience(raw)
            size = os.fstat(raw.fileno()).st_size if data is None else len(data)
            if size > SIZE_LIMIT:
                raise BrokenImage(path, f"{size:,} bytes are more than the {SIZE_LIMIT:,} allowed")
            self._image = Image.open(file, formats=FORMATS)
            file.opened = True
            width, height = self._image.size
            self._refuse_bombs(width, height, size)
            self._turn = self._orientation()
        except Exception as error:
            self.close()
            raise self._broken(error) from None
        self.height, self.width = (width, height) if self._turn in _SIDEWAYS else (height, width)

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _refuse_bombs(self, width: int, height: int, size: int) -> None:
        """Small files that would take long or much memory; found before any pixel is decoded."""
        pixels = width * height
        if pixels > PIXEL_LIMIT:
            raise BrokenImage(self.path, f"{width} x {height} pixels are more than the {PIXEL_LIMIT:,} allowed")
        if pixels > max(_SMALL, _PIXELS_PER_BYTE * size):
            raise BrokenImage(self.path, f"{width} x {height} pixels in {size:,} bytes: a decompression bomb")
        if max(width, height) > max(_LONG, _TIMES * min(width, height)):
            raise BrokenImage(self.path, f"{width} x {height} pixels: more than {_TIMES} times as long as wide")
        if self._image.info.get("progressive") and self._file is not None:
            place = self._file.tell()
            self._file.seek(0)
            scans, last = 0, b""
            while piece := self._file.read(16 << 20):
                scans += (last + piece).count(b"\xff\xda")  # no other byte pair of the coded pixels can be this one
                last = piece[-1:]
            self._file.seek(place)
            if scans > _SCANS and scans * pixels > _SCANNED:
                raise BrokenImage(self.path, f"{width} x {height} pixels in {scans:,} scans: a decompression bomb")

    def _broken(self, error: Exception) -> BrokenImage:
        return error if isinstance(error, BrokenImage) else BrokenImage(self.path, _reason(error))

    def _orientation(self) -> int:
        if self._image.format == "PNG" and "exif" not in self._image.info:
            return 1  # Pillow would decode the whole file in search of a chunk behind the pixels
        try:
            return int(self._image.getexif().get(_ORIENTATION, 1))
        except Exception:
            return 1  # a damaged EXIF block is no reason to lose the picture

    @property
    def can_shrink(self) -> bool:
        return self._image.format == "JPEG"

    def load(self, shrink: int = 1) -> Image.Image:
        """The first frame, upright, in RGB; where ``can_shrink``, at 1/2, 1/4 or 1/8 of the size, which is faster."""
        try:
            image: Image.Image = self._image
            if shrink > 1 and self.can_shrink:
                image.draft(None, (image.width // shrink, image.height // shrink))
            image = rgb(image)
            return image.transpose(_UPRIGHT[self._turn]) if self._turn in _UPRIGHT else image
        except Exception as error:
            raise self._broken(error) from None


class Bitmap:
    """Pixels already in memory, with the face of a Picture."""

    can_shrink = False

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.height, self.width = pixels.shape[:2]
        self._pixels = pixels

    def __enter__(self) -> Bitmap:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def load(self, shrink: int = 1) -> Image.Image:
        return Image.fromarray(self._pixels)


def rgb(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode == "RGB":
        return image
    if image.mode.startswith(("I", "F")):  # 16 bits and more, which convert() would clip to 255
        values = np.asarray(image)
        if values.dtype.kind == "f":
            values = np.clip(np.nan_to_num(values), 0, 255) * (255.0 if values.max(initial=0) <= 1 else 1.0)
        else:
            values = np.minimum(values, 65535) // 256 if image.mode == "I" else values >> 8
        return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # straight to RGB, Pillow warns about transparent palettes
    return image.convert("RGB")


def decode(path: str) -> NDArray[np.uint8]:
    """The picture as H x W x 3."""
    with Picture(path) as picture:
        image = picture.load()
        try:
            return np.array(image)
        except MemoryError as error:
            raise BrokenImage(path, _reason(error)) from None


def header_size(path: str) -> tuple[int, int] | None:
    """(height, width) without decoding the pixels; None where the file is broken."""
    try:
        with Picture(path) as picture:
            return picture.height, picture.width
    except BrokenImage:
        return None
