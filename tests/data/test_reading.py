"""Reading many pictures at once: what is packed, what is dropped, and what would not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from saved import arrays, files, save

from ressl.data.base import FileSource
from ressl.data.cutting import centre
from ressl.data.decode import BrokenImage
from ressl.data.reading import SizesDiffer, check_broken, pack, read_all, read_chunks
from ressl.errors import ResslError


def test_pack_drops_broken_files_with_their_labels(tmp_path: Path) -> None:
    source = files(tmp_path, 200, broken=(0, 77, 199), size=(10, 12))
    calls: list[tuple[int, int]] = []
    packed, broken = pack(source, lambda done, total: calls.append((done, total)))
    kept = [i for i in range(200) if i not in (0, 77, 199)]
    assert packed.images.shape == (197, 3, 10, 12)
    assert all(np.array_equal(packed.read(new), source.read(old)) for new, old in enumerate(kept))
    assert packed.labels is not None
    assert packed.labels.tolist() == [i % 4 for i in kept]
    assert packed.classes == source.classes
    assert [Path(b.path).name for b in broken] == ["000.png", "077.png", "199.png"]
    assert calls[-1] == (200, 200)
    none = files(tmp_path, 3, broken=(0, 1, 2))
    with pytest.raises(ResslError, match="none of the 3 pictures"):
        pack(none)
    with pytest.raises(ResslError, match="none of the 3 pictures"):
        read_all(none, size=8)


def test_check_broken(tmp_path: Path) -> None:
    broken = [BrokenImage("a", "b")] * 11
    check_broken(broken[:10], 100, "list.txt")
    with pytest.raises(ResslError, match=r"11 of 100 pictures are broken \(11%.*list\.txt"):
        check_broken(broken, 100, "list.txt")


@pytest.mark.parametrize(("resize", "size"), [(146, 128), (145, 128), (20, 16), (19, 16), (16, 16)])
def test_the_middle_of_what_is_read_is_the_picture_s_own(tmp_path: Path, resize: int, size: int) -> None:
    """Even and odd margins, inside and outside: read for evaluation, or at once as embed does, the same pixels."""
    paths = []
    for extra in range(6):
        paths.append(tmp_path / f"{extra}.png")
        save(paths[-1], height=resize + extra, width=resize)
    source = FileSource("here", paths)
    images, _, _ = read_all(source, resize, inner=size)
    edge = round((resize - size) / 2)
    for row, image in enumerate(images):
        with source.open(row) as picture:
            expected = torch.tensor(centre(picture, size, resize)).permute(2, 0, 1)
        assert torch.equal(image[:, edge : edge + size, edge : edge + size], expected)


def test_read_all_resizes_like_torchvision(tmp_path: Path) -> None:
    source = files(tmp_path, 12, broken=(5,))
    images, labels, broken = read_all(source, size=16, short_side=20)
    kept = [i for i in range(12) if i != 5]
    assert images.shape == (11, 3, 16, 16)
    assert labels is not None
    assert labels.tolist() == [i % 4 for i in kept]
    assert len(broken) == 1
    for row, i in enumerate(kept):
        picture = torch.from_numpy(source.read(i)).permute(2, 0, 1)
        expected = TF.center_crop(TF.resize(picture, [20], antialias=True), [16, 16])
        assert (images[row].int() - expected.int()).abs().max() <= 1
    with pytest.raises(SizesDiffer, match="differ in size"):
        read_all(source)
    whole, _, none = read_all(arrays(5))
    assert torch.equal(whole, arrays(5).images)
    assert none == []
    assert read_all(arrays(5), size=4)[0].shape == (5, 3, 4, 4)
    chunks = list(read_chunks(source, size=8, chunk=5))
    assert torch.cat([chunk.ids for chunk in chunks]).tolist() == kept
    assert [len(chunk.broken) for chunk in chunks] == [0, 1, 0]


def test_read_all_says_when_it_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from ressl.data import reading

    monkeypatch.setattr(reading, "ram", lambda: 1000)
    with pytest.raises(ResslError, match="more than half of the memory"):
        read_all(arrays(5))
