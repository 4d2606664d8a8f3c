"""The decoder, fed with what strangers' pictures may be."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from saved import pixels, save

from ressl.data.decode import PIXEL_LIMIT, BrokenImage, decode, header_size


def test_modes_become_rgb(tmp_path: Path) -> None:
    rgb = pixels(1)
    gray = rgb[..., 0]
    image = Image.fromarray(rgb)
    image.convert("RGBA").save(tmp_path / "rgba.png")
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(gray.astype(np.float32) / 255).save(tmp_path / "float.tiff")
    Image.fromarray(gray > 127).save(tmp_path / "bits.png")
    image.convert("CMYK").save(tmp_path / "cmyk.tif")
    image.quantize(256).save(tmp_path / "palette.png", transparency=b"\x00\x80")
    assert np.array_equal(decode(str(tmp_path / "rgba.png")), rgb)
    for name in ("gray.png", "deep.png"):
        assert np.array_equal(decode(str(tmp_path / name)), np.repeat(gray[..., None], 3, 2)), name
    assert np.abs(decode(str(tmp_path / "float.tiff")).astype(int) - gray[..., None]).max() <= 1
    assert np.array_equal(decode(str(tmp_path / "bits.png"))[..., 0], (gray > 127) * np.uint8(255))
    for name in ("cmyk.tif", "palette.png"):
        assert np.abs(decode(str(tmp_path / name)).astype(int) - rgb).mean() < 12, name


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert decode(str(tmp_path / "a.gif"))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_as_pillow_sees_it(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.png"
    Image.fromarray(pixels(2, 6, 10)).save(path, exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(decode(str(path)), expected)
    assert header_size(str(path)) == expected.shape[:2]


def _png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore")
def test_broken_files(tmp_path: Path) -> None:
    save(tmp_path / "whole.jpg", 3, 64, 64)
    whole = (tmp_path / "whole.jpg").read_bytes()
    side = int(PIXEL_LIMIT**0.5) + 1
    cases = {
        "cut.jpg": whole[: len(whole) // 2],
        "zero.png": b"",
        "text.png": b"hello",
        "bomb.png": _png_header(side, side),
        "huge.png": _png_header(2**31 - 1, 2**31 - 1),
        # Pillow would hand this to Ghostscript.
        "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BrokenImage) as caught:
            decode(str(tmp_path / name))
        assert caught.value.path == str(tmp_path / name)
        assert caught.value.reason
        assert "\n" not in str(caught.value)
    os.mkfifo(tmp_path / "fifo.png")
    for special in ("fifo.png", "."):
        with pytest.raises(BrokenImage):  # and does not wait for a writer
            decode(str(tmp_path / special))


@pytest.mark.filterwarnings("ignore")
def test_just_below_the_bomb_limit_is_judged_by_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(_png_header(10_000, 10_000) + bytes(2_000_000))  # above Pillow's warning, below our limit
    assert header_size(str(path)) == (10_000, 10_000)
    path.write_bytes(_png_header(10_000, 10_000))  # the same picture from a thousandth of the bytes
    assert header_size(str(path)) is None


@pytest.mark.filterwarnings("ignore")
def test_mutated_files_only_ever_raise_broken_image(tmp_path: Path) -> None:
    draw = random.Random(0)
    originals = []
    for name in ("a.jpg", "a.png", "a.gif", "a.webp", "a.tiff", "a.bmp", "a.ppm"):
        save(tmp_path / name, 4, 24, 24)
        originals.append((tmp_path / name).read_bytes())
    path, broken = tmp_path / "mutant", 0
    for _ in range(700):
        data = bytearray(draw.choice(originals))
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data[: draw.randint(1, len(data))] if draw.random() < 0.3 else data)
        try:
            result = decode(str(path))
            assert result.dtype == np.uint8
            assert result.ndim == 3
            assert result.shape[2] == 3
        except BrokenImage:
            broken += 1
    assert 100 < broken < 700
