"""What cannot be measured here runs end to end on small files in the true formats."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invented import pictures
from PIL import Image

from ressl import cli
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError
from ressl.evaluation.svm import SvmProtocol
from ressl.reproduce import running
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.page import page
from ressl.reproduce.tables import TABLES


@pytest.fixture
def words(tmp_path: Path, data: Path) -> list[str]:
    return ["--data", str(data), "--device", "cpu", "--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led")]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_stl10_learns_from_unlabelled_pictures_too(tmp_path, words, shrunk, monkeypatch, capsys) -> None:
    monkeypatch.setitem(TABLES, "table1", shrunk(TABLES["table1"]))
    assert cli.main(["reproduce", "table1", "--only", "MoCo v2 | STL-10", *words]) == 0
    assert " top-1 " in capsys.readouterr().out  # the linear evaluation takes long, and shows that it goes on
    (record,) = records(tmp_path / "led")
    assert record["steps"] == 3  # of 16 of the 24 + 24 pictures
    assert record["evaluations"]["linear"]["test_pictures"] == 12
    line = next(line for line in page(Ledger(tmp_path / "led")).splitlines() if line.startswith("| MoCo v2 | STL-10"))
    assert "| 85.88 |" in line


def cifar100(root: Path) -> None:
    """The binary version: a coarse label, a fine label, and the channels of a picture one after the other."""
    root.mkdir(parents=True)
    for part, n in (("train", 40), ("test", 10)):
        planes = pictures(n, 32, n).transpose(0, 3, 1, 2).reshape(n, -1)
        rows = [bytes((0, i % 2)) + row.tobytes() for i, row in enumerate(planes)]
        (root / f"{part}.bin").write_bytes(b"".join(rows))
    (root / "fine_label_names.txt").write_text("".join(f"fine{i}\n" for i in range(100)))


def tiny_imagenet(root: Path) -> None:
    """Labels of the validation pictures in a file; a test folder whose pictures have none."""
    classes = ("n01443537", "n01629819")
    for i, picture in enumerate(pictures(70, 64, 1)):
        label = classes[i % 2]
        part = "train" if i < 40 else "val" if i < 50 else "test"
        folder = root / part / (f"{label}/images" if part == "train" else "images")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{part}_{i}.JPEG")
        if part == "val":
            with (root / "val" / "val_annotations.txt").open("a") as file:
                file.write(f"val_{i}.JPEG\t{label}\t0\t0\t62\t62\n")


@pytest.mark.parametrize(
    ("column", "make", "folder", "whole"),
    [
        ("CIFAR-100", cifar100, "cifar100/cifar-100-binary", 50_000),
        ("Tiny ImageNet", tiny_imagenet, "tiny-imagenet/tiny-imagenet-200", 100_000),
    ],
)
def test_a_part_of_a_data_set_is_no_number_of_the_paper(
    tmp_path, words, data, shrunk, monkeypatch, capsys, column: str, make: Callable[[Path], None], folder: str, whole
) -> None:
    make(data / folder)
    monkeypatch.setitem(TABLES, "table3", shrunk(TABLES["table3"]))
    assert cli.main(["reproduce", "table3", "--only", f"weak teacher, {column}", *words]) == 0
    (record,) = records(tmp_path / "led")
    assert (record["steps"], record["lacking"]) == (2, whole - 40)
    assert record["evaluations"]["linear"]["test_pictures"] == 10
    said = f"{record['evaluations']['linear']['last']:.2f} (n 1, best {record['evaluations']['linear']['best']:.2f}"
    assert f"{said}, on part of the data)" in page(Ledger(tmp_path / "led"))
    assert " ".join(capsys.readouterr().out.split()).count("part of the data") == 1  # the table that is shown
    full = record | {"lacking": 0, "finished": "2020-01-01T00:00:00Z"}
    (tmp_path / "led" / "whole.json").write_text(json.dumps(full))
    (job,) = jobs(TABLES["table3"], only=f"weak teacher, {column}")
    found = Ledger(tmp_path / "led").find(job)
    assert found is not None
    assert found["lacking"] == 0  # though it is the older one


@pytest.mark.parametrize("only", ["ReSSL, 5 crops", "MoCo v2 | ResNet-18"])
def test_imagenet_trains_from_jpeg_files(tmp_path, words, shrunk, monkeypatch, capsys, streamed, only: str) -> None:
    monkeypatch.setitem(TABLES, "imagenet", shrunk(TABLES["imagenet"]))
    assert cli.main(["reproduce", "imagenet", "--only", only, *words]) == 0
    (record,) = records(tmp_path / "led")
    assert len(record["recipe"]["views"]) == (6 if "crops" in only else 2)
    assert record["steps"] == 2
    assert record["evaluations"]["linear"]["test_pictures"] == 12
    shown = capsys.readouterr().out
    assert "streaming: 32 pictures of up to 39 x 40" in shown
    assert "STL-10, Tiny ImageNet and VOC07 have not been measured" in page(Ledger(tmp_path / "led"))


@pytest.fixture
def lowshot(shrunk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "lowshot", shrunk(TABLES["lowshot"]))


def test_lowshot_measures_one_run_by_four_numbers(tmp_path, words, lowshot, capsys, monkeypatch) -> None:
    assert cli.main(["reproduce", "lowshot", "--only", "ReSSL", *words]) == 0
    (record,) = records(tmp_path / "led")
    rows = {row["shots"]: row for row in record["evaluations"]["svm-on-voc07"]["by_shots"]}
    assert list(rows) == [16, 32, 64, None]
    assert "linear" not in record["evaluations"]  # not asked for
    shown = capsys.readouterr().out
    assert "1 run, 0 of them in the ledger, 1 to make" in shown
    text = page(Ledger(tmp_path / "led"))
    assert f"| ReSSL | K 16 | 79.17 | {rows[16]['mean']:.2f} (n 1, on part of the data) |" in text
    assert f"| ReSSL | all labels | 86.31 | {rows[None]['mean']:.2f} (n 1, on part of the data) |" in text
    assert "`ressl reproduce lowshot --only 'ReSSL, K 16' --seeds 0 --into mine` |" in text
    assert "STL-10, Tiny ImageNet and ImageNet have not been measured" in text
    monkeypatch.setattr(running, "make", lambda *a: pytest.fail("made again"))
    assert cli.main(["reproduce", "lowshot", "--only", "ReSSL", *words]) == 0
    assert "1 of them in the ledger, 0 to make" in capsys.readouterr().out


def test_random_weights_are_measured_without_training(tmp_path, words, lowshot, capsys) -> None:
    assert cli.main(["reproduce", "table9", "--only", "Random", "--quick", *words]) == 0
    (record,) = records(tmp_path / "led")
    assert (record["steps"], record["recipe"]["epochs"]) == (0, 0)
    (rows,) = [found["by_shots"] for found in record["evaluations"].values()]
    assert [row["shots"] for row in rows] == [16, 32, 64, None]
    shown = capsys.readouterr().out
    assert "Random, imagenet-r50, seed 0: ?" in shown  # there are no epochs to tell its time by
    assert f"{rows[-1]['mean']:.2f} (n 1" in shown
    assert "| Random | all labels | 12.42 |" in page(Ledger(tmp_path / "led"))


def test_lowshot_of_a_run_on_any_labelled_folder_is_accuracy(tmp_path, words, lowshot, data, make_folder, capsys):
    job = jobs(TABLES["lowshot"], only="MoCo v2")[0]
    place = running.Place(str(data), str(tmp_path / "runs"), str(tmp_path / "led"), "cpu")
    running.make(job, place, running.Quiet())
    photos = make_folder(n=48)
    run = job.folder(place.runs)
    asked = ["reproduce", "lowshot", "--from", str(run), "--on", str(photos), "--device", "cpu"]
    assert cli.main([*asked, "--into", str(tmp_path / "other")]) == 0
    (record,) = records(tmp_path / "other")
    found = record["evaluations"]["svm-on-photos"]
    assert found["measure"] == "top-1"
    assert found["settings"]["shots"] == list(SvmProtocol().shots)
    shown = capsys.readouterr().out
    assert f"{found['by_shots'][0]['mean']:.2f} (n 1" in shown
    assert "76.14" not in shown  # that is VOC07's
    assert str(tmp_path) not in json.dumps(record)


def test_an_interrupted_lowshot_goes_on(tmp_path, lowshot, data) -> None:
    job = jobs(TABLES["lowshot"], only="ReSSL")[0]
    place = lambda name: running.Place(str(data), str(tmp_path / name), str(tmp_path / f"{name}-led"), "cpu")

    class Stopping(running.Quiet):
        def progress(self, done: int, total: int, values: dict[str, float]) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        running.make(job, place("cut"), Stopping())
    cut, whole = (running.make(job, place(name), running.Quiet()) for name in ("cut", "whole"))
    assert cut["evaluations"]["svm-on-voc07"]["by_shots"] == whole["evaluations"]["svm-on-voc07"]["by_shots"]


def test_what_is_missing_is_said_first(tmp_path, data, lowshot, capsys) -> None:
    (data / "voc07").rename(data / "voc")
    words = ["--data", str(data), "--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led")]
    assert cli.main(["reproduce", "lowshot", "--only", "ReSSL", *words]) == 2
    assert "has no folder 'voc07'; put the data set there" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    place = running.Place(str(data))
    with pytest.raises(ResslError, match="has no folder 'voc07'"):
        place.check(jobs(TABLES["lowshot"])[0])
