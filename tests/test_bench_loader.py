"""The loader's benchmark: what it measures, and what it says of the files that it read."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benched import CPU, toy
from ressl import cli
from ressl.bench import loader, suite
from ressl.bench.loader import described, files_of, in_words, jpegs, loader_speed
from ressl.bench.steps import pictures
from ressl.data.base import FileSource
from ressl.recipes import Recipe
from ressl.reproduce.schema import misfit

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


def test_the_loader_is_measured_with_and_without_a_step():
    rows = [*loader_speed(toy(), CPU, 0, 0.05)]
    assert [row["loader"].split(":")[0].split(",")[0] for row in rows] == [
        *("step on resident pictures", "whole files decoded", "loader", "step fed by the loader")
    ]
    assert all(row["images_per_second"] > 0 for row in rows)
    assert rows[0]["share_of_step"] == 1.0


def test_the_loader_streams_the_files_it_is_given_and_idle_is_what_the_step_waits(tmp_path, make_folder, monkeypatch):
    """So few small pictures would lie on the device, were they not to be streamed; and an epoch of them is long."""
    seen = []

    class Slow(loader.StreamingLoader):
        def __init__(self, source, *more):
            super().__init__(source, *more)
            seen.append(len(source))

        def iterate(self, epoch, start_step=0):
            for batch in super().iterate(epoch, start_step):
                time.sleep(0.15)
                yield batch

    folder, recipe = make_folder(n=12), toy()
    monkeypatch.setattr(loader, "StreamingLoader", Slow)
    monkeypatch.setattr(loader, "STEPS", 10)
    monkeypatch.setattr(suite, "small", lambda named: recipe)
    kept, keep = [], lambda found: kept.append(len(found["loader"]))
    found = suite.bench("cifar10", parts=("loader",), device=CPU, workers=0, seconds=0.05, data=str(folder), keep=keep)
    assert kept[:4] == [1, 2, 3, 4]  # who stops it keeps what was measured
    resident, decoded, streamed, fed = found["loader"]
    assert {row["files"].split(",")[0] for row in (decoded, streamed, fed)} == {"12 files of photos"}
    assert seen == [168, 168]  # ten batches of 16, of whole rounds
    assert str(tmp_path) not in json.dumps(found)
    assert misfit(found) is None
    assert 0.5 < fed["idle_share"] < 1
    assert fed["share_of_step"] == pytest.approx(fed["images_per_second"] / resident["images_per_second"], abs=1e-3)
    (_, _, rows), *_ = suite.tables(found)
    assert rows[3][0] == f"step fed by the loader (device idle {100 * fed['idle_share']:.0f} %)"


def test_batches_that_lay_ready_are_not_measured(monkeypatch):
    """While a step is compiled the workers fill their queue; taken from there, any loader looks fast."""
    taken, clock = [], []
    monkeypatch.setattr(loader, "_batches", lambda made: iter(lambda: taken.append(1), 0))
    monkeypatch.setattr(loader, "seconds_of_one", lambda call, *more: clock.append(len(taken)) or 1.0)
    recipe = toy()
    loader._stream(recipe, pictures(64, 16), CPU, 3, 0.0)
    assert clock == [8]


def test_shards_are_read_as_their_files_are(tmp_path, make_folder):
    paths = sorted(make_folder(n=4).rglob("*.*"))
    paths = [path for path in paths if path.is_file()]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in paths:
            tar.add(path, path.name)
    source = loader.files_of(str(tmp_path / "a.tar"))
    assert [source.raw(i) for i in range(len(source))] == [path.read_bytes() for path in paths]
    again = loader.Repeated(source, 6)
    assert len(again) == 8
    assert (again.read(5) == source.read(1)).all()
    assert again.identify(5) == source.identify(1)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--parts", "loss", "--data", "."], "--data is read by the part 'loader' alone; add it to --parts"),
        (["--parts", "loader", "--data", "shapes"], "shapes holds no picture files to read"),
        (["--parts", "loader", "--data", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_data_that_nothing_reads_is_a_mistake(asked, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "--device", "cpu", *asked]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
