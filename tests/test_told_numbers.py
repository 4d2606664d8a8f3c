"""What a page, a card and a table say of their numbers: of which weights, of how much training, of which pictures."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ressl import cards, runs
from ressl.cli import main
from ressl.evaluating import evaluate
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.report.numbers import rows_of
from ressl.reporting import report
from ressl.runs import Run

SIZES = {"train": 48, "test": 4}


def knn(top1: float, **facts: Any) -> dict[str, Any]:
    return {"protocol": "knn", "top1": top1, "settings": {"k": 5}, "step": 7} | facts


def text_of(*found: Run, out: Path) -> str:
    return re.sub(r"(\s|<[^>]+>)+", " ", report(found, out, device="cpu").read_text())


def test_a_number_from_before_a_run_went_on_is_left_out_though_it_is_not_over(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run()  # its checkpoint is of step 7
    assert "steps" not in run.facts
    run.write_evaluation("knn", knn(99.5, step=3))
    assert run.evaluations() == ({}, ["The evaluation knn, made after step 3 of 7,"])
    assert "99.50" not in text_of(run, out=tmp_path / "a.html")
    assert "knn" not in cards.metrics_of(run)
    run.write_evaluation("knn", knn(61.25))
    assert "61.25" in text_of(run, out=tmp_path / "b.html")


def test_a_run_that_is_not_over_is_not_said_to_have_had_all_its_epochs(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run(epochs=40)
    rows = [{"step": 4, "epoch": 1.0, "loss": 3.0}, {"step": 7, "epoch": 1.75, "loss": 2.0}]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "1 of 40 epochs" in text_of(run, out=tmp_path / "a.html")
    assert "| trained | 1 of 40 epochs, " in cards.model_card(cards.card_of(run, 32))
    run.note({"finished": "2030-01-01T00:00:00Z", "steps": 7})
    assert "1 of 40" not in text_of(run, out=tmp_path / "b.html")
    assert "| trained | 40 epochs, " in cards.model_card(cards.card_of(run, 32))


def test_a_network_of_timm_is_given_no_stem_and_no_width(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(backbone="timm/test_vit", image_size=160)
    card = cards.model_card(cards.card_of(run, 64))
    assert "| backbone | timm/test\\_vit |" in card
    assert "average pooling" not in card  # its own way of pooling
    assert "timm/test_vit, 160 px" in text_of(run, out=tmp_path / "page.html")


def test_seeds_are_averaged_where_pictures_and_training_are_the_same(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    first, second = (make_run(f"seed {seed}", data="folder", seed=seed) for seed in (0, 1))
    for run, top1 in ((first, 60.0), (second, 40.0)):
        run.write_evaluation("knn", knn(top1))
    assert "mean of 2 seeds" in text_of(first, second, out=tmp_path / "a.html")
    second.note({"data": "/secret/other"})  # pictures of its own, with the same recipe
    assert "mean of" not in text_of(first, second, out=tmp_path / "b.html")
    second.note({"data": first.facts["data"], "steps": 9})
    second.write_evaluation("knn", knn(40.0, step=9))
    assert "mean of" not in text_of(first, second, out=tmp_path / "c.html")


def test_runs_of_different_methods_or_data_are_told_apart_by_name_and_words(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    found = make_run("one"), make_run("two", method="byol")
    text = text_of(*found, out=tmp_path / "page.html")
    assert re.search(r"one : ReSSL on \S+, resnet", text)
    assert re.search(r"two : BYOL on \S+, resnet", text)


def test_page_and_table_say_which_pictures_were_tested_on(
    make_run: Callable[..., Run], make_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "6 test pictures of photos (no test split: one labelled picture in 5 held out)"
    run, photos = make_run("one"), str(make_folder(30))
    assert main(["evaluate", str(run.path), "--protocol", "knn", "svm", "--device", "cpu", "--data", photos]) == 0
    assert f"tested on {said}\n" in capsys.readouterr().out
    assert f"Tested on {said}." in text_of(run, out=tmp_path / "a.html")
    other = make_run("two")
    other.write_evaluation("svm", {"by_shots": [], "measure": "top-1", "step": 7, "test": "who knows how many"})
    other.write_evaluation("knn", knn(50.0, test="the data's own test split", test_pictures=1200))
    words = f"Tested on one: {said}; two: 1,200 test pictures (the data&#x27;s own test split)."
    assert words in text_of(run, other, out=tmp_path / "b.html").replace("&#39;", "&#x27;").replace("'", "&#x27;")


def test_neighbours_are_counted_as_they_voted(make_run: Callable[..., Run], make_folder: Callable[..., Path]) -> None:
    run, photos = make_run(), str(make_folder(30))  # 24 of them to fit on
    few, many = (evaluate(run, "knn", device="cpu", data=photos, k=k) for k in (3, 200))
    assert [rows_of("knn", found)[0].beside for found in (few, many)] == ["k = 3", "k = 24, all there are"]


def test_too_few_pictures_for_a_map_are_enough_for_accuracy_by_class(
    tmp_path: Path, tiny: Callable[..., Recipe], memory: Any
) -> None:
    file, draw = tmp_path / "few.npz", np.random.default_rng(0)
    parts = {f"x_{name}": draw.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8) for name, n in SIZES.items()}
    np.savez(file, **parts, **{f"y_{name}": np.arange(n) % 2 for name, n in SIZES.items()})
    run = pretrain(tiny(data="array"), data=file, out=tmp_path / "run", device="cpu", display=memory())
    text = text_of(run, out=tmp_path / "page.html")
    assert "4 test pictures are too few for a map" in text
    assert "worst and best class" in text


def test_a_run_in_a_folder_that_may_not_be_written_to_is_measured_and_shown(
    tmp_path: Path,
    tiny: Callable[..., Recipe],
    array_file: Path,
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = pretrain(tiny(data="array"), data=array_file, out=tmp_path / "run", device="cpu", display=memory())

    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(runs, "write_atomically", refuse)
    shown = memory()
    assert evaluate(run, "knn", device="cpu", display=shown)["test_pictures"] == 24
    assert any("not kept, because" in text and "Permission denied" in text for text in shown.messages)
    assert run.read_evaluation("knn") is None
    assert "worst and best class" in text_of(run, out=tmp_path / "page.html")
    monkeypatch.setattr("ressl.reporting.write_atomically", refuse)
    assert main(["report", str(run.path), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.endswith("report.html cannot be written: Permission denied; choose another --out\n")
