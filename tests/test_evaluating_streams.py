"""Evaluation of pictures that are too many to hold: the same numbers as of those that are held, and few at a time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nearly import close
from ressl import alike, benches, measuring
from ressl.data import unread
from ressl.data.base import FileSource
from ressl.data.reading import Chunk, read_chunks
from ressl.errors import ResslError
from ressl.evaluating import bench_of, evaluate, evaluate_each
from ressl.evaluation.linear import LinearProtocol
from ressl.labelled import EvaluationData, UnreadData
from ressl.runs import Run
from ressl.subjects import Subject, subject_of_run

AUGMENTED = LinearProtocol(schedule="cosine", lr=2.0, epochs=3, batch_size=16, scale=(0.4, 1.0), resize=18)
EXACT = ("knn", "knn-sweep", "svm", "geometry", "classes", "finetune", "linear")
CHANGES: dict[str, dict[str, Any]] = {
    "svm": {"shots": (2, 4), "draws": 2},
    "finetune": {"epochs": 2, "batch_size": 8, "fractions": (0.2, 0.5)},
    "geometry": {"pictures": 11},
    "linear": {"augment": False},
    "linear-cosine": {"lr": 10.0, "epochs": 6, "batch_size": 16},
}


def save_all(root: Path, count: int, seed: int, broken: tuple[int, ...] = ()) -> None:
    """Pictures of three colours in three classes, of many sizes; every other one a JPEG."""
    draw = np.random.default_rng(seed)
    for i in range(count):
        folder = root / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 120, (20 + i % 7, 22 + i % 5, 3), dtype=np.uint8)
        pixels[:, :, i % 3] += 130
        path = folder / f"{i:03d}.{'jpg' if i % 2 else 'png'}"
        Image.fromarray(pixels).save(path)
        if i in broken:
            path.write_bytes(path.read_bytes()[:60])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    save_all(tmp_path / "photos" / "train", 90, 0)
    save_all(tmp_path / "photos" / "test", 30, 1)
    return tmp_path / "photos"


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    return make_run("run", data="folder", linear=AUGMENTED)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on no picture may stay in memory; they are read a few at a time."""

    def begin(workers: int = 0, chunk: int = 8) -> None:
        monkeypatch.setattr(alike, "may_be_held", lambda device: 0)
        monkeypatch.setattr(unread, "CHUNK", chunk)
        monkeypatch.setattr(measuring, "workers", lambda: workers)

    return begin


def seeing_colour(run: Run) -> Subject:
    """The run with a backbone that sees the mean colour, which tells the classes apart and which crops leave alone."""
    backbone = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    nn.init.dirac_(backbone[0].weight)
    return replace(subject_of_run(run), backbone=lambda: backbone)


def measured(run: Run, photos: Path, *protocols: str, **more: Any) -> dict[str, dict[str, Any]]:
    found = evaluate_each(run, protocols, data=str(photos), device="cpu", changes=CHANGES, again=True, **more)
    return {name: {k: v for k, v in result.items() if not k.endswith("seconds")} for name, result in found}


@pytest.mark.parametrize("split", ["own split", "held out"])
def test_all_that_needs_features_alone_is_the_same(
    run: Run, photos: Path, stream: Callable[..., None], split: str, memory: Any
) -> None:
    place = photos if split == "own split" else photos / "train"
    whole = measured(run, place, *EXACT)
    before = bench_of(subject_of_run(run), str(place), "cpu")
    assert isinstance(before.data, EvaluationData)
    stream()
    shown = memory()
    bench = bench_of(subject_of_run(run), str(place), "cpu", again=True)
    assert isinstance(bench.data, UnreadData)
    for a, b in zip(bench.features(), before.features(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for name in ("train", "test"):
        (pictures, labels), (images, truth) = getattr(bench.data, name), getattr(before.data, name)
        assert torch.equal(labels, truth)
        assert torch.equal(pictures[:], images)
        some = torch.tensor([[3, 1], [1, 0]])
        assert torch.equal(pictures[some], images[some])
    found = measured(run, place, *EXACT, display=shown)
    assert {result.pop("streamed") for result in found.values()} == {True}
    close(found, whole)
    assert "too many to hold, so they are read as needed" in shown.said


def test_pictures_of_one_small_size_stay_as_they_are(
    make_folder: Callable[..., Path], make_run: Callable[..., Run], stream: Callable[..., None]
) -> None:
    run, place = make_run("run", data="folder"), make_folder(30)
    whole = measured(run, place, "knn", "svm")
    stream()
    found = measured(run, place, "knn", "svm")
    assert found["knn"]["test_input"] == whole["knn"]["test_input"] == "16 x 16 px, as is"
    assert found["knn"].pop("streamed") == found["svm"].pop("streamed") is True
    close(found, whole)


def test_one_of_another_size_that_a_sample_misses_is_found(
    make_folder: Callable[..., Path], make_run: Callable[..., Run], stream: Callable[..., None]
) -> None:
    run, place = make_run("run", data="folder"), make_folder(300)
    sampled = np.linspace(0, 299, 256, dtype=np.int64).tolist()
    odd = sorted(place.rglob("*.png"))[next(i for i in range(300) if i not in sampled)]
    Image.open(odd).resize((17, 19)).save(odd)
    whole = measured(run, place, "knn")["knn"]
    stream(chunk=64)
    found = measured(run, place, "knn")["knn"]
    assert found.pop("streamed")
    assert found["test_input"] == "18 x 18 px, as is"
    close(found, whole)


def test_linear_evaluation_on_views_of_streamed_pictures(
    run: Run, photos: Path, stream: Callable[..., None], memory: Any
) -> None:
    stream()
    shown = memory()
    found = evaluate(seeing_colour(run), "linear", data=str(photos), device="cpu", epochs=12, display=shown)
    assert found["last"] == 100.0
    assert len(found["curve"]) == 12
    assert found["streamed"]
    steps = 12 * (90 // 16)
    assert shown.steps == [*range(1, steps + 1), steps]
    assert shown.values[-1] == {"epoch": 12.0, "accuracy": 100.0}


def test_neither_workers_nor_what_came_before_changes_the_result(
    run: Run, photos: Path, stream: Callable[..., None]
) -> None:
    (photos / "train" / "b" / "004.png").write_bytes(b"nothing")
    found = []
    for workers, names in ((0, ("linear-cosine",)), (2, ("linear-cosine",)), (0, ("knn", "linear-cosine"))):
        stream(workers)  # the last time, it is known before the linear evaluation which file is broken
        result = measured(run, photos, *names)["linear-cosine"]
        found.append((result["curve"], result["broken"]))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == 1
    assert len(set(found[0][0])) > 2  # a curve that moves


def test_a_sweep_over_streamed_pictures_has_what_each_rate_has_alone(
    run: Run, photos: Path, stream: Callable[..., None], memory: Any
) -> None:
    stream()
    how: dict[str, Any] = {"data": str(photos), "device": "cpu", "epochs": 4, "batch_size": 16}
    shown = memory()
    swept = evaluate(run, "linear-sweep", rates="cosine:10,step:3", display=shown, **how)
    assert shown.values[-1]["accuracy"] == max(row["last"] for row in swept["by_rate"])
    assert swept["streamed"]
    rates = [{"schedule": "cosine", "lr": 10.0}, {"schedule": "step", "lr": 3.0}]
    alone = [evaluate(run, "linear", **rate, **how)["curve"] for rate in rates]
    assert [row["curve"] for row in swept["by_rate"]] == alone
    assert alone[0] != alone[1]


def test_features_that_are_standardized_must_be_taken_once(run: Run, photos: Path, stream: Callable[..., None]) -> None:
    stream()
    with pytest.raises(ResslError, match="standardize needs features that are taken once"):
        evaluate(run, "linear", data=str(photos), device="cpu", standardize=True)


@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_broken_files_are_left_out_and_counted(
    run: Run, tmp_path: Path, stream: Callable[..., None], memory: Any, how: str
) -> None:
    """What is left is measured as if the broken ones had never been there."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for place in (good, bad):
        save_all(place / "train", 90, 0, broken=(4, 31))
        save_all(place / "test", 30, 1, broken=(7,))
    for name in ("train/b/004.png", "train/b/031.jpg", "test/b/007.jpg"):
        (good / name).unlink()
    if how == "streamed":
        stream()
    names = ("knn", "svm", "classes", "geometry", "linear")
    expected, shown = measured(run, good, *names), memory()
    found = measured(run, bad, *names, display=shown)
    own = ("data", "place", "contents", "broken")
    for name in names:
        assert (found[name]["broken"], found[name]["test_pictures"]) == (3, 29)
        assert expected[name]["broken"] == 0
        close(*({k: v for k, v in each[name].items() if k not in own} for each in (found, expected)))
        assert str(tmp_path) not in json.dumps(found[name])
    told = [text for text in shown.messages if text.startswith("broken files left out")]
    assert sum(int(text.split()[4]) for text in told) == 3
    assert "004.png" in told[0]
    (row,) = evaluate(run, "transfer", to=(str(bad),), epochs=2, device="cpu", again=True)["to"]
    assert (row["broken"], row["test_pictures"], row["train_pictures"]) == (3, 29, 88)
    if how == "streamed":
        augmented, again = memory(), bench_of(subject_of_run(run), str(bad), "cpu")
        result = evaluate(seeing_colour(run), "linear", data=str(bad), device="cpu", epochs=12, display=augmented)
        assert (result["broken"], result["last"], result["test_pictures"]) == (3, 100.0, 29)
        assert "007.jpg" in augmented.said
        again.features()  # from the cache, which knows which they were
        assert (len(again.broken), len(again.data.train[1])) == (3, 88)


def test_fine_tuning_opens_its_share_alone(
    run: Run, photos: Path, stream: Callable[..., None], monkeypatch: pytest.MonkeyPatch, memory: Any
) -> None:
    stream()
    (photos / "test" / "a" / "000.png").write_bytes(b"nothing")
    opened: list[str] = []
    plain_open = FileSource.open
    monkeypatch.setattr(FileSource, "open", lambda self, i: (opened.append(self.paths[i]), plain_open(self, i))[1])
    change = {"epochs": 1, "batch_size": 8, "fractions": (0.2,)}
    # The sizes of a sample of the files are looked at, too, but not here.
    monkeypatch.setattr(FileSource, "sample_sizes", lambda self, at_most=256: [(20, 22), (21, 22)])
    found = evaluate(run, "finetune", data=str(photos), device="cpu", **change)
    assert found["by_fraction"][0]["pictures"] == 18
    assert (found["broken"], found["streamed"]) == (1, True)
    assert len({path for path in opened if "/train/" in path}) == 18
    assert len({path for path in opened if "/test/" in path}) == 30
    monkeypatch.setattr(unread, "may_be_held", lambda device: 20 * 3 * 18 * 18)
    with pytest.raises(ResslError, match=r"45 pictures of 18 x 18 take .*choose shares below 0\.5 with --fractions"):
        evaluate(run, "finetune", data=str(photos), device="cpu", **change | {"fractions": (0.1, 0.5)})


def test_few_pictures_are_held_at_a_time(
    run: Run, photos: Path, stream: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream(chunk=4)
    changes: list[int] = []  # a list, because two threads write: what is added to it is not lost

    def spied(*given: Any, **more: Any) -> Generator[Chunk]:
        for chunk in read_chunks(*given, **more):
            changes.append(len(chunk.images))
            weakref.finalize(chunk.images, changes.append, -len(chunk.images))
            yield chunk
            del chunk

    monkeypatch.setattr(unread, "read_chunks", spied)
    measured(run, photos, "knn", "classes", "linear")
    assert sum(change for change in changes if change > 0) == 120  # each once
    assert 0 < max(accumulate(changes)) <= 3 * 4
    assert sum(changes) == 0


def test_features_of_streamed_pictures_are_kept_until_a_file_changes(
    run: Run, photos: Path, stream: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream()
    taken: list[int] = []
    plain = benches.extract_unread
    monkeypatch.setattr(benches, "extract_unread", lambda *a, **k: (taken.append(1), plain(*a, **k))[1])
    first = evaluate(run, "knn", data=str(photos), device="cpu")
    evaluate(run, "knn", k=3, data=str(photos), device="cpu")
    evaluate(run, "geometry", data=str(photos), device="cpu")
    assert len(taken) == 2  # train and test, once
    path = photos / "train" / "a" / "000.png"
    Image.open(path).rotate(90).save(path)
    second = evaluate(run, "knn", data=str(photos), device="cpu")
    assert len(taken) == 4
    assert first["contents"] != second["contents"]


def test_an_array_and_several_labels_may_be_streamed_too(
    run: Run, array_file: Path, tmp_path: Path, make_voc: Callable[[Path], Path], stream: Callable[..., None]
) -> None:
    make_voc(tmp_path / "voc")
    there = (("svm", f"voc07={tmp_path / 'voc'}"), ("knn", str(array_file)))
    ask = lambda: [evaluate(run, name, data=data, device="cpu", again=True) for name, data in there]
    whole = ask()
    stream()
    for found, before in zip(ask(), whole, strict=True):
        assert found.pop("streamed")
        close(*({k: v for k, v in each.items() if k != "seconds"} for each in (found, before)))
