"""Pictures of different sizes held together: their views are those of each alone, and no other picture is in them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from saved import files, pixels, smooth
from torch import Tensor

from ressl.data import loaders, reading
from ressl.data.base import FileSource
from ressl.data.decode import Picture
from ressl.data.loaders import RaggedLoader, ResidentLoader, StreamingLoader, choose_residency, make_loader
from ressl.data.ragged import DoNotFit, RaggedSource, pack_ragged
from ressl.data.reading import pack
from ressl.data.views import STRONG, View, Views

SIZES = [(20, 31), (31, 20), (9, 90), (24, 24), (1, 1), (40, 3), (17, 23), (28, 12)]
VIEWS = [
    View(size=16),
    View(size=12, crop=(0.05, 0.14)),
    View(size=16, crop=None),
    View(size=16, crop=None, pad=3),
    View(size=12, crop=(0.5, 1.0), ratio=(1.0, 1.0), jitter=0.8, gray=0.2, blur=0.5, solarize=0.5),
]


def ragged(sizes: list[tuple[int, int]] = SIZES) -> RaggedSource:
    parts = [torch.from_numpy(pixels(i, *size)).permute(2, 0, 1).flatten() for i, size in enumerate(sizes)]
    return RaggedSource("r", torch.cat(parts), torch.tensor(sizes), torch.arange(len(sizes)) % 3, list("xyz"))


def make(source: RaggedSource, rank: int = 0, world: int = 1) -> tuple[RaggedLoader, Views]:
    return RaggedLoader(source, VIEWS, len(source), "cpu", 5, rank, world), Views(VIEWS, (0.0,) * 3, (1.0,) * 3, 5)


def made(source: RaggedSource, index: Tensor, step: int = 7) -> list[Tensor]:
    loader, views = make(source)
    return loader.make_views(views, torch.tensor(step), index)


def test_views_are_those_of_each_picture_alone() -> None:
    source, index = ragged(), torch.tensor([3, 0, 2, 7, 5, 1, 4, 6])
    together, (_, views) = made(source, index), make(source)
    for row, i in enumerate(index.tolist()):
        picture = torch.from_numpy(source.read(i)).permute(2, 0, 1)[None]
        for ours, alone in zip(together, views(picture, 7, torch.tensor([row])), strict=True):
            torch.testing.assert_close(ours[row : row + 1], alone, rtol=0, atol=1e-6)


def test_nothing_of_another_picture_is_in_a_view() -> None:
    source, index = ragged(), torch.arange(len(SIZES))
    for kept in range(len(SIZES)):
        other = ragged()
        other.images.fill_(255)
        mine = slice(int(source.starts[kept]), int(source.starts[kept]) + 3 * int(source.sizes[kept].prod()))
        other.images[mine] = source.images[mine]
        for a, b in zip(made(source, index), made(other, index), strict=True):
            assert torch.equal(a[kept], b[kept])


def test_a_window_holds_every_box() -> None:
    """Of pictures of any shape and crops of any kind, at 400 draws each; and it is no larger than it must be."""
    u = torch.rand(400, View.COLUMNS, generator=torch.Generator().manual_seed(0))
    sides, scales = (1, 2, 3, 7, 30, 160, 241, 2000), ((0.2, 1.0), (0.05, 0.14), (0.001, 0.01), (1.0, 1.0), (0.9, 1.0))
    for scale, ratio in itertools.product(scales, ((3 / 4, 4 / 3), (1.0, 1.0), (0.2, 0.5), (2.0, 9.0))):
        view = View(size=8, crop=scale, ratio=ratio)
        for height, width in itertools.product(sides, sides):
            boxes = view.boxes(u, height, width)
            window = torch.tensor(view.window(torch.tensor([height]), torch.tensor([width])))
            assert (boxes[:, 2:] <= window).all(), (scale, ratio, height, width)
    usual, panorama = torch.tensor([160, 160]), torch.tensor([213, 2000])
    assert View(size=8).window(usual, panorama) == (160, 215)
    assert View(size=8, crop=None).window(usual, panorama) == (160, 2000)


def test_views_agree_with_those_of_streaming(tmp_path: Path) -> None:
    source = files(tmp_path, 12)
    views = [View(size=16, flip=0.0), View(size=12, crop=(0.1, 0.5), flip=0.0), View(size=20, crop=None, flip=0.0)]
    opened = make_loader(source, views, 6, "cpu", seed=3)
    assert isinstance(opened.loader, RaggedLoader)
    streaming = StreamingLoader(source, views, 6, "cpu", seed=3)
    both = zip(opened.loader.iterate(1), streaming.iterate(1), strict=True)
    for number, (mine, streamed) in enumerate(both):
        assert torch.equal(mine.index, streamed.index)
        assert mine.labels is not None
        assert streamed.labels is not None
        assert torch.equal(mine.labels, streamed.labels)
        made = opened.loader.make_views(Views(views, (0.0,) * 3, (1.0,) * 3, 3), 2 + number, mine.index)
        assert streamed.crops is not None
        for ours, theirs in zip(made, streamed.crops, strict=True):
            assert (255 * ours - theirs).abs().max() <= 1.01  # they are rounded, once a direction


def test_ranks_share_the_batch() -> None:
    source, index = ragged(), torch.arange(len(SIZES))
    whole = made(source, index)
    for rank in range(2):
        loader, views = make(source, rank, 2)
        for a, b in zip(loader.make_views(views, torch.tensor(7), index[rank::2]), whole, strict=True):
            torch.testing.assert_close(a, b[rank::2], rtol=0, atol=1e-6)


def test_views_are_one_program_without_the_host() -> None:
    """What asks the host, or has a shape that depends on the data, would break the program in two."""
    source, two = ragged(), [View(size=12), View(size=12, crop=None, pad=2)]
    loader, views = RaggedLoader(source, two, len(source), "cpu", 5), Views(two, (0.0,) * 3, (1.0,) * 3, 5)
    whole = torch.compile(lambda step, index: loader.make_views(views, step, index), fullgraph=True, backend="eager")
    for step in (0, 1):
        index = loader.ids(step, 0)
        expected = loader.make_views(views, torch.tensor(step), index)
        for a, b in zip(whole(torch.tensor(step), index), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


# --- reading and choosing ---


def test_packing_keeps_pixels_labels_and_order_whatever_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, calls = files(tmp_path, 300, broken=(0, 77, 299)), list[tuple[int, int]]()
    kept = [i for i in range(300) if i not in (0, 77, 299)]
    packed, broken = pack_ragged(source, VIEWS, 10**9, lambda done, total: calls.append((done, total)))
    assert all(np.array_equal(packed.read(new), source.read(old)) for new, old in enumerate(kept))
    assert packed.labels is not None
    assert packed.labels.tolist() == [i % 4 for i in kept]
    assert [Path(b.path).name for b in broken] == ["000.png", "077.png", "299.png"]
    assert calls == [(256, 300), (300, 300)]
    monkeypatch.setattr(reading, "_THREADS", 1)
    alone, _ = pack_ragged(source, VIEWS, 10**9)
    assert torch.equal(alone.images, packed.images)
    assert torch.equal(alone.sizes, packed.sizes)


def test_no_more_is_decoded_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, decoded, load = files(tmp_path, 300), list[str](), Picture.load

    def counted(picture: Picture, shrink: int = 1) -> Image.Image:
        decoded.append(picture.path)
        return load(picture, shrink)

    monkeypatch.setattr(Picture, "load", counted)
    with pytest.raises(DoNotFit, match="more than the 20 kB set aside"):
        pack_ragged(source, VIEWS, 20_000)
    assert 0 < len(decoded) <= 12  # of about 2 kB each


def test_the_choice_for_pictures_of_different_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, views = files(tmp_path, 8), [View(size=16)]
    assert choose_residency(source, views, "cpu") == (
        True, "resident: 8 pictures of up to 28 x 30 are about 17 kB on cpu")  # fmt: skip
    opened = make_loader(source, views, 4, "cpu", seed=0)
    assert opened.why == "resident: 8 pictures of up to 28 x 30 are 17 kB on cpu"
    # A panorama counts by the part of it that a crop sees, and a view that sees all of it by its length.
    Image.fromarray(smooth(0, 20, 900)).save(source.paths[3])
    long = FileSource("files", source.paths, source.labels, source.classes)
    opened = make_loader(long, views, 4, "cpu", seed=0)
    assert isinstance(opened.loader, RaggedLoader)
    assert opened.why == "resident: 8 pictures of up to 28 x 900 are 69 kB on cpu"
    assert opened.loader.windows == [(28, 30)]
    resident, why = choose_residency(long, [View(size=16, crop=None)], "cpu")
    assert not resident
    assert why == "streaming: 8 pictures of up to 28 x 900 are much larger than views of 16"
    monkeypatch.setattr(loaders, "room", lambda device: 18_000)
    resident, why = choose_residency(source, views, "cpu")  # which would fit, if the rest is as the sample is
    assert not resident
    assert why == "streaming: 8 pictures of up to 28 x 30 are about 17 kB, more than the 18 kB set aside on cpu"


def test_what_the_sample_did_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, views = files(tmp_path, 300, size=(8, 8)), [View(size=16)]
    odd = next(i for i in range(300) if i not in set(np.linspace(0, 299, 256, dtype=np.int64).tolist()))
    Image.fromarray(smooth(0, 9, 11)).save(source.paths[odd])
    assert source.size == (8, 8)
    with pytest.raises(reading.SizesDiffer, match="9 x 11"):
        pack(source)
    opened = make_loader(source, views, 10, "cpu", seed=0)
    assert isinstance(opened.loader, RaggedLoader)
    assert opened.why == "resident: 300 pictures of up to 9 x 11 are 58 kB on cpu"
    # Too large to be held, by itself or in all: said, and streamed.
    Image.fromarray(smooth(0, 300, 300)).save(source.paths[odd])
    opened = make_loader(source, views, 10, "cpu", seed=0)
    assert isinstance(opened.loader, StreamingLoader)
    assert opened.why == f"streaming: {source.paths[odd]} (300 x 300) is much larger than views of 16."
    monkeypatch.setattr(loaders, "room", lambda device: 60_000)
    opened = make_loader(source, views, 10, "cpu", seed=0)
    assert isinstance(opened.loader, StreamingLoader)
    assert opened.why == "streaming: pictures of different sizes take more than the 60 kB set aside."


def test_one_size_goes_the_way_it_went(tmp_path: Path) -> None:
    loader = make_loader(files(tmp_path, 20, size=(24, 24)), [STRONG], 10, "cpu", seed=0).loader
    assert type(loader) is ResidentLoader
    views = Views([STRONG], (0.5,) * 3, (0.2,) * 3, 0)
    index = loader.ids(0, 1)
    (ours,), (expected,) = loader.make_views(views, 1, index), views(loader.images[index], 1, loader.rows)
    assert torch.equal(ours, expected)
