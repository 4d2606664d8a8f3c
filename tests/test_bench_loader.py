"""What the loader's benchmark says of the files that it read."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ressl import cli
from ressl.bench import loader, suite
from ressl.bench.loader import described, files_of, in_words, jpegs, loader_speed
from ressl.data.base import FileSource
from ressl.recipes import Recipe
from ressl.reproduce.schema import misfit

CPU = torch.device("cpu")
READ = ("data", "pictures", "median_height", "median_width", "mean_bytes")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five pictures of three sizes, and one that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, size in enumerate([(40, 30), (40, 30), (64, 48), (200, 30), (40, 100)]):
        Image.new("RGB", size, (20 * i, 0, 0)).save(folder / f"{i}.jpg")
    (folder / "5.jpg").write_bytes(b"none" * 9999)
    return folder


def bytes_of(folder: Path) -> int:
    return round(sum(path.stat().st_size for path in folder.glob("[0-4].jpg")) / 5)


def test_files_are_described_by_those_that_can_be_read(photos: Path) -> None:
    found = described(files_of(str(photos)), "photos")
    assert found == dict(zip(READ, ("photos", 6, 30, 40, bytes_of(photos)), strict=True))
    assert in_words(found) == "6 files of photos, 30 x 40 at the median, 1 kB on average"


def test_pictures_in_shards_are_described_as_their_files_are(photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for path in sorted(photos.iterdir()):
            archive.add(path, path.name)
    assert described(files_of(str(tmp_path / "a.tar")), "a") == described(files_of(str(photos)), "a")


def test_none_that_can_be_read_is_no_size(photos: Path) -> None:
    assert described(FileSource("x", [str(photos / "5.jpg"), str(photos / "gone.jpg")]), "x") == {
        "data": "x",
        "pictures": 2,
    }


def test_a_sample_of_many_files_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, plain_open = list[int](), FileSource.open
    monkeypatch.setattr(loader, "SAMPLE", 5)
    monkeypatch.setattr(FileSource, "open", lambda self, i: (looked.append(i), plain_open(self, i))[1])
    source = jpegs(tmp_path, 41, (10, 12))
    assert described(source, "x")["pictures"] == 41
    assert looked == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("given", [True, False])
def test_a_record_says_what_its_speeds_were_read_from(
    given: bool, photos: Path, tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    recipe = tiny("cifar10", batch_size=4)
    monkeypatch.setattr(suite, "small", lambda named: recipe)
    monkeypatch.setattr(loader, "STEPS", 5)
    monkeypatch.chdir(photos.parent)
    (photos / "5.jpg").unlink()
    data = ["--data", str(photos)] if given else []
    words = ["--parts", "loader", *data, "--workers", "0", "--seconds", "0.01", "--device", "cpu", "--into", "out"]
    assert cli.main(["bench", *words]) == 0
    (path,) = Path("out").glob("*.json")
    record = json.loads(path.read_text())
    assert misfit(record) is None
    resident, *rows = record["loader"]
    assert not {*READ} & {*resident}
    expected = ("photos", 5, 30, 40, bytes_of(photos)) if given else (loader.RANDOM, 64, 96, 128)
    for row in rows:
        assert tuple(row[key] for key in READ)[: len(expected)] == expected
    text = (
        "5 files of photos, 30 x 40 at the median, 1 kB on average"
        if given
        else f"64 random JPEG files, 96 x 128 at the median, {rows[0]['mean_bytes'] / 1000:.0f} kB on average"
    )
    assert suite.tables(record)[0][0] == f"from {text}"
    assert text in " ".join(capsys.readouterr().out.split())
    assert str(photos.parent) not in path.read_text()
    record["loader"][1]["median_width"] = "40"
    assert "median_width must be" in str(misfit(record))


def test_a_named_set_keeps_its_name(make_folder: Callable[..., Path], tiny: Callable[..., Recipe]) -> None:
    place = make_folder(12, name="here/train")
    rows = loader_speed(tiny("cifar10", batch_size=4), CPU, 0, 0.01, f"imagenet={place.parent}")
    next(rows)
    assert next(rows)["data"] == "imagenet"
    rows.close()
