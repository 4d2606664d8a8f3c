"""Picture files of every format, and what can happen to them."""

from __future__ import annotations

import io
import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def seeds() -> list[tuple[str, bytes]]:
    """(ending, bytes) of small good files in all formats and many of their modes."""
    noise = np.random.default_rng(0).integers(0, 256, (13, 17, 3), dtype=np.uint8)
    rgb = Image.fromarray(noise)
    gray, palette = rgb.convert("L"), rgb.convert("P")
    deep = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    real = Image.fromarray(noise[..., 0].astype(np.float32) / 255)
    turned = Image.Exif()
    turned[0x0112] = 6
    found = [
        *(
            ("jpg", _saved(rgb, "JPEG", **more))
            for more in ({}, {"progressive": True}, {"exif": turned}, {"quality": 5})
        ),
        *(("jpg", _saved(image, "JPEG")) for image in (gray, rgb.convert("CMYK"))),
        *(("png", _saved(image, "PNG")) for image in (rgb, rgb.convert("RGBA"), palette, gray, deep, rgb.convert("1"))),
        ("png", _saved(palette, "PNG", transparency=3)),
        ("gif", _saved(palette, "GIF")),
        ("gif", _saved(palette, "GIF", save_all=True, append_images=[palette], interlace=1)),
        *(("bmp", _saved(image, "BMP")) for image in (rgb, palette, rgb.convert("1"))),
        *(("webp", _saved(rgb, "WEBP", **more)) for more in ({}, {"lossless": True}, {"quality": 5})),
        ("webp", _saved(rgb, "WEBP", save_all=True, append_images=[gray.convert("RGB")])),
        *(("ppm", _saved(image, "PPM")) for image in (rgb, gray, rgb.convert("1"), deep)),
        *(("tif", _saved(image, "TIFF")) for image in (rgb, gray, deep, real, rgb.convert("CMYK"))),
        *(("tif", _saved(rgb, "TIFF", compression=c)) for c in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
        ("ppm", b"P3\n2 2\n255\n" + b"1 2 3 " * 4),
        ("ppm", b"P1\n3 2\n1 0 1 0 1 1\n"),
    ]
    return found


INTERESTING = [b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff",
               b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\x7f", b"\xff\xda", b"\xff\xd9", b"\xff\xc2",
               b"IDAT", b"IEND", b"tRNS", b"PLTE", b"999999", b"-1", b"\x01\x00\x00\x00"]  # fmt: skip


def mutate(good: list[tuple[str, bytes]], moments: random.Random) -> tuple[str, bytes]:
    """One changed file; its ending may be another's."""
    ending, data = moments.choice(good)
    for _ in range(moments.choice([1, 1, 1, 2, 4, 16])):
        at = moments.randrange(len(data)) if data else 0
        kind = moments.randrange(9)
        if kind == 0:  # a bit
            data = data[:at] + bytes([(data[at] if data else 0) ^ (1 << moments.randrange(8))]) + data[at + 1 :]
        elif kind == 1:  # random bytes
            some = moments.randbytes(moments.randrange(1, 9))
            data = data[:at] + some + data[at + len(some) :]
        elif kind == 2:
            data = data[:at]
        elif kind == 3:  # inserted
            data = data[:at] + moments.randbytes(moments.randrange(1, 30)) + data[at:]
        elif kind == 4:  # left out
            data = data[:at] + data[at + moments.randrange(1, 30) :]
        elif kind == 5:  # numbers that programs trip over
            some = moments.choice(INTERESTING)
            data = data[:at] + some + data[at + len(some) :]
        elif kind == 6:  # the start of one and the end of another
            other = moments.choice(good)[1]
            data = data[:at] + other[moments.randrange(len(other)) :]
        elif kind == 7:  # a part again
            data = data[:at] + data[max(0, at - 40) :]
        else:  # near the front, where sizes are declared
            at = moments.randrange(min(40, len(data))) if data else 0
            some = moments.choice(INTERESTING)
            data = data[:at] + some + data[at + len(some) :]
    if moments.random() < 0.05:
        ending = moments.choice(good)[0]
    return ending, data


# --- bombs and things that are no files ---


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int = 8, colour: int = 2, extra: bytes = b"") -> bytes:
    """All one colour, so that it packs to a thousandth."""
    bits = width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    packer = zlib.compressobj(1)
    row = bytes(min(1 + (bits + 7) // 8, 40_000))
    packed = b"".join(packer.compress(row) for _ in range(height if width < 10_000 else 1)) + packer.flush()
    palette = _chunk(b"PLTE", bytes(768)) if colour == 3 else b""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + palette + extra + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def scans(width: int, height: int, count: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    data = _saved(Image.new("L", (width, height)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + b"\xff\xd9"


def bombs() -> dict[str, bytes]:
    text = zlib.compress(bytes(70_000_000), 1)
    bmp = lambda width, height, bits, packed: (
        b"BM" + struct.pack("<IHHI", 60, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, packed, *[0] * 5)
    )  # fmt: skip
    return {
        "declared.png": png(100_000, 100_000),
        "wide.png": png(2**31 - 1, 1),
        "sixteen.png": png(3999, 3999, 16, 6),
        "palette.png": png(3999, 3999, 8, 3),
        "rgb.png": png(3999, 3999),
        "large.png": png(8000, 8000),
        "text.png": png(4, 4, extra=_chunk(b"zTXt", b"a\0\0" + text)),
        "profile.png": png(4, 4, extra=_chunk(b"iCCP", b"a\0\0" + text)),
        "gray.jpg": _saved(Image.new("L", (4000, 3999)), "JPEG"),
        "large.jpg": _saved(Image.new("L", (10_000, 10_000)), "JPEG", quality=1),
        "progressive.jpg": _saved(Image.new("RGB", (4000, 3999)), "JPEG", progressive=True),
        "scans.jpg": scans(2000, 2000, 4000),
        "few-scans.jpg": scans(3900, 3900, 25),
        "canvas.gif": b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\0\0" + bytes(6)
                      + b"," + struct.pack("<HHHH", 0, 0, 65535, 65535) + b"\0\x02\x02\x4c\x01\0;",
        "plain.gif": _saved(Image.new("P", (4000, 3999)), "GIF"),
        "huge.bmp": bmp(60_000, 60_000, 24, 0),
        "rle.bmp": bmp(4000, 3999, 8, 1) + b"\xff\x00" * 2000,
        "huge.ppm": b"P6 60000 60000 255\n" + bytes(1000),
        "text.ppm": b"P3 3999 3999 255\n" + b"1 " * 50_000,
        "huge.webp": _saved(Image.new("RGB", (16_383, 970)), "WEBP", lossless=True),
        "wide.tif": _saved(Image.new("L", (15_000_000, 1)), "TIFF", compression="tiff_adobe_deflate"),
        "large.tif": _saved(Image.new("RGB", (3999, 3999)), "TIFF", compression="tiff_lzw"),
        "endless.gif": b"GIF89a" + struct.pack("<HH", 4, 4) + b"\x80\0\0" + bytes(20_000_000),
        "padded.jpg": b"\xff\xd8" + b"\xff" * 20_000_000,
        "comment.ppm": b"P6 #" + bytes(20_000_000),
        "empty.jpg": b"",
        "page.png": b"<!DOCTYPE html><script>alert(1)</script>",
        "script.jpg": b"#!/bin/sh\ntouch canary\n",
        "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(canary) (w) file closefile\n",
        "vector.jpg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "archive.png": b"PK\x03\x04" + bytes(40),
    }  # fmt: skip


def holes(folder: Path) -> None:
    """Files that say they have gigabytes, and take no room on the disk."""
    ends = {"text.png": b"tEXt", "profile.png": b"iCCP", "exif.png": b"eXIf"}
    starts = {f"hole-{name}": png(4, 4)[:33] + struct.pack(">I", 2**31 - 1) + kind for name, kind in ends.items()}
    starts["hole.webp"] = b"RIFF" + struct.pack("<I", 2**32 - 2) + b"WEBPVP8 " + struct.pack("<I", 2**32 - 20)
    starts["hole.tif"] = b"II*\0" + struct.pack("<IHHHII", 8, 1, 270, 2, 3 << 30, 100)
    for size in (3 << 30, 400 << 20):
        for name, start in starts.items():
            with open(folder / f"{size}-{name}", "wb") as file:
                file.write(start)
                file.truncate(size)


def special(folder: Path) -> None:
    """Names that end like pictures and are none."""
    os.mkfifo(folder / "pipe.jpg")
    (folder / "folder.jpg").mkdir()
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "ring").symlink_to(folder)
    (folder / "nothing.png").symlink_to("not-there")
    (folder / "zeros.png").symlink_to("/dev/zero")
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to("..")
