"""VOC2007 in its official layout, on small files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ressl.data.sources import open_source, splits
from ressl.data.voc import VOC_CLASSES, MultiLabelSource
from ressl.errors import ResslError


@pytest.mark.parametrize("below", ["", "VOCdevkit", "VOCdevkit/VOC2007"])
def test_the_official_layout_is_read(tmp_path: Path, make_voc: Callable[[Path], Path], below: str) -> None:
    make_voc(tmp_path)
    root = tmp_path / below
    source = open_source("voc07", "train", root)
    assert isinstance(source, MultiLabelSource)
    assert source.targets.shape == (60, 20)
    assert source.classes == list(VOC_CLASSES)
    assert splits("voc07", root) == {"train", "test"}
    i = 7  # 000008: class 8, and 9 because it is even; 8 % 5 = 3 is difficult
    assert source.paths[i].endswith("JPEGImages/000008.jpg")
    assert source.targets[i].nonzero()[:, 0].tolist() == [c for c in range(20) if c != 3]
    assert (source.targets[i] == 1).nonzero()[:, 0].tolist() == [8, 9]
    assert source.read(i).shape == (20 + 8 % 7, 24, 3)
    assert len(open_source("voc07", "test", root)) == 40


def test_what_is_missing_or_cut_is_said(tmp_path: Path, make_voc: Callable[[Path], Path]) -> None:
    with pytest.raises(ResslError, match=r"voc07 \(trainval\) was not found .*VOCtrainval_06-Nov-2007.tar"):
        open_source("voc07", "train", tmp_path)
    make_voc(tmp_path)
    file = tmp_path / "VOCdevkit/VOC2007/ImageSets/Main/cat_trainval.txt"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(True)[:-1]))
    with pytest.raises(ResslError, match="59 lines for 60 pictures"):
        open_source("voc07", "train", tmp_path)
    file.write_text(whole.replace("000003 -1", "000003 seven"))
    with pytest.raises(ResslError, match="fits no picture or label"):
        open_source("voc07", "train", tmp_path)
    (tmp_path / "VOCdevkit/VOC2007/ImageSets/Main/test.txt").unlink()
    with pytest.raises(ResslError, match=r"VOCtest_06-Nov-2007\.tar"):
        open_source("voc07", "test", tmp_path)
