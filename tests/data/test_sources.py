"""Folders, arrays and the decoder, with everything that may lie in a folder of strangers' pictures."""

from __future__ import annotations

import os
import random
import socket
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ressl.data.base import Paths
from ressl.data.decode import PIXEL_LIMIT, BrokenImage, decode, header_size
from ressl.data.sources import ArraySource, FileSource, Source, guess_data, open_source, pretrain_split, splits
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


def names(source: Source) -> list[str]:
    return [Path(source.identify(i)).name for i in range(len(source))]


# --- folders ---


def test_flat_folder_is_unlabelled_and_sorted(tmp_path: Path) -> None:
    arrays = {name: save(tmp_path / name, seed) for seed, name in enumerate(["b.PNG", "a.png", "deep/er/c.bmp"])}
    save(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("no picture")
    source = open_source("folder", root=tmp_path)
    assert isinstance(source, FileSource)
    assert names(source) == ["a.png", "b.PNG", "c.bmp"]
    assert source.labels is None
    assert source.classes == []
    assert np.array_equal(source.read(0), arrays["a.png"])
    assert np.array_equal(source.read(2), arrays["deep/er/c.bmp"])
    assert source.size == (8, 8)
    assert splits("folder", tmp_path) == {"train"}
    fails("folder", "test", tmp_path, match="no test split")


def test_class_folders(tmp_path: Path) -> None:
    for seed, name in enumerate(["dog/2.png", "cat/nested/1.jpg", "cat/0.png", "empty/readme.txt"]):
        if name.endswith("txt"):
            (tmp_path / "empty").mkdir()
        else:
            save(tmp_path / name, seed)
    source = open_source("folder", root=tmp_path)
    assert source.classes == ["cat", "dog"]
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1]
    assert source.labels.dtype == torch.int64
    assert names(source) == ["0.png", "1.jpg", "2.png"]


def test_one_class_tells_nothing(tmp_path: Path) -> None:
    save(tmp_path / "only" / "a.png")
    assert open_source("folder", root=tmp_path).labels is None


@pytest.mark.parametrize("test_name", ["test", "val", "valid", "validation", "Val"])
def test_splits_share_the_training_classes(tmp_path: Path, test_name: str) -> None:
    for name in ("train/a/0.png", "train/b/1.png", "train/c/2.png", f"{test_name}/c/3.png"):
        save(tmp_path / name)
    assert splits("folder", tmp_path) == {"train", "test"}
    test = open_source("folder", "test", tmp_path)
    assert test.classes == ["a", "b", "c"]
    assert test.labels is not None
    assert test.labels.tolist() == [2]  # not 0, which it would be among the test folders alone
    save(tmp_path / test_name / "zebra" / "4.png")
    fails("folder", "test", tmp_path, match="zebra")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus/0.png", "car/1.png", "train/2.png"):
        save(tmp_path / name)
    assert open_source("folder", root=tmp_path).classes == ["bus", "car", "train"]
    assert splits("folder", tmp_path) == {"train"}


def test_train_alone_is_a_split(tmp_path: Path) -> None:
    for name in ("train/x/0.png", "train/y/2.png"):
        save(tmp_path / name)
    assert open_source("folder", root=tmp_path).classes == ["x", "y"]


def test_no_pictures(tmp_path: Path) -> None:
    fails("folder", root=tmp_path / "missing", match="missing")
    fails("folder", root=tmp_path, match="no pictures in")
    (tmp_path / "a.txt").write_text("x")
    fails("folder", root=tmp_path, match=r"expected files ending in \.jpg")
    fails("folder", root=tmp_path / "a.txt", match="is a file")
    fails("folder", match="needs a place")
    fails("foldr", root=tmp_path, match="did you mean 'folder'")
    fails("folder", "tset", tmp_path, match="did you mean 'test'")


def test_line_breaks_in_names_stay_out_of_messages(tmp_path: Path) -> None:
    fails("folder", root=tmp_path / "a\nb\x1b[31m", match=r"a\\nb\\x1b")


def test_links_fifos_and_sockets(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    save(root / "a" / "0.png")
    save(root / "b" / "1.png")
    save(outside / "2.png")
    (root / "a" / "up").symlink_to(root)  # a loop
    (root / "aa").symlink_to(root / "b")  # a sibling twice: must not take b's pictures away
    (root / "c").symlink_to(outside)  # a class kept elsewhere
    (outside / "back").symlink_to(tmp_path)  # and a loop through there
    (root / "a" / "dangling.png").symlink_to(tmp_path / "nothing.png")
    os.mkfifo(root / "a" / "fifo.png")
    (root / "a" / "linked.png").symlink_to(root / "a" / "fifo.png")
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as unix:
        os.chdir(root / "b")  # the length of a socket's path is limited
        try:
            unix.bind("socket.png")
        finally:
            os.chdir(here)
        source = open_source("folder", root=root)
    assert names(source) == ["0.png", "dangling.png", "1.png", "2.png"]
    with pytest.raises(BrokenImage, match="No such file"):
        source.read(1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folder_is_reported(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    save(tmp_path / "locked" / "b.png")
    (tmp_path / "locked").chmod(0)
    try:
        with pytest.warns(UserWarning, match="locked"):
            assert len(open_source("folder", root=tmp_path)) == 1
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_paths_in_one_buffer() -> None:
    given = ["a", "", "grün/ö.png", os.fsdecode(b"\xff\xfe.png"), "z" * 300]
    paths = Paths(given)
    assert list(paths) == given
    assert paths[-1] == given[-1]
    assert paths[1:3] == given[1:3]
    with pytest.raises(IndexError):
        paths[5]


# --- decoding ---


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


# --- arrays ---


def _nhwc(n: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 6, 4, 3), dtype=np.uint8)


def test_npy_layouts(tmp_path: Path) -> None:
    array = _nhwc()
    expected = torch.from_numpy(array).permute(0, 3, 1, 2)
    forms = {"nhwc": array, "nchw": array.transpose(0, 3, 1, 2), "float": array.astype(np.float32) / 255}
    for name, form in forms.items():
        np.save(tmp_path / f"{name}.npy", form)
        source = open_source("array", root=tmp_path / f"{name}.npy")
        assert isinstance(source, ArraySource)
        assert torch.equal(source.images, expected), name
        assert np.array_equal(source.read(3), array[3])
        assert source.size == (6, 4)
        assert source.identify(3) == "array[3]"
    np.save(tmp_path / "gray.npy", array[..., 0])
    gray = open_source("array", root=tmp_path / "gray.npy")
    assert np.array_equal(gray.read(1), np.repeat(array[1, :, :, :1], 3, 2))


def test_npz_with_labels_and_test_split(tmp_path: Path) -> None:
    array = _nhwc(6)
    path = tmp_path / "a.npz"
    np.savez(path, x_train=array[:4], y_train=[[7], [3], [7], [-1]], x_test=array[4:], y_test=[7, 3])
    train, test = open_source("array", "train", path), open_source("array", "test", path)
    assert splits("array", path) == {"train", "test"}
    assert train.classes == test.classes == ["3", "7"]
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [1, 0, 1, -1]
    assert test.labels.tolist() == [1, 0]
    assert np.array_equal(test.read(0), array[4])
    np.savez(path, images=array)
    assert open_source("array", root=path).labels is None
    assert splits("array", path) == {"train"}


def test_bad_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for bad in (
        np.zeros((4, 8, 8, 5), np.uint8),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((0, 8, 8, 3), np.uint8),
        np.zeros((4, 8, 8, 3), np.int32),
        np.full((4, 8, 8, 3), 2.0),
        np.full((4, 8, 8, 3), np.nan, np.float32),
    ):
        np.save(path, bad)
        fails("array", root=path, match="expected uint8")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    fails("array", root=path, match="cannot be read as an array")
    np.save(path, _nhwc())
    path.write_bytes(path.read_bytes()[:200])
    fails("array", root=path, match="cannot be read as an array")
    fails("array", root=tmp_path / "none.npy", match="no file")
    fails("array", "test", path, match="no test split")
    npz = tmp_path / "a.npz"
    npz.write_bytes(b"PK\x03\x04 not a zip")
    fails("array", root=npz, match="cannot be read as an array")
    np.savez(npz, pictures=_nhwc())
    fails("array", root=npz, match="'images' or 'x' or 'x_train'")
    np.savez(npz, x=_nhwc(5), y=[0, 1])
    fails("array", root=npz, match="5 pictures but 2 labels")
    np.savez(npz, x=_nhwc(2), y=[0.5, 1])
    fails("array", root=npz, match="expected N integers")


def test_npz_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999, 1000, 1000, 3), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    fails("array", root=path, match="unpacks to")


def test_guess(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", _nhwc())
    assert guess_data(tmp_path / "a.npy") == "array"
    assert guess_data(str(tmp_path)) == "folder"
    for missing in ("x.npz", "nowhere"):
        with pytest.raises(ResslError, match="there is no"):
            guess_data(tmp_path / missing)
    assert pretrain_split("stl10") == "train+unlabelled"
    assert pretrain_split("folder") == "train"
