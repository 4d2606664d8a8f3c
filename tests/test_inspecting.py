"""What is shown of a run: queries, whatever views its method trains on, and the names that belong to its pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.spines import Spine
from matplotlib.text import Text

from ressl.cli import main
from ressl.commands import views as views_command
from ressl.data.augment import to_float
from ressl.data.views import STRONG, WEAK, Views, describe
from ressl.evaluating import bench_of
from ressl.inspecting import chosen_queries, class_numbers, neighbours_of, query_view
from ressl.methods import METHODS
from ressl.recipes import get_recipe
from ressl.report.figures import WRONG
from ressl.runs import Run
from ressl.subjects import subject_of_run


def test_weak_queries_of_moco_are_cropped_and_flipped_alone(make_run: Callable[..., Run], array_file: Path) -> None:
    """Its own views are strong, both of them."""
    moco = make_run(method="moco-v2", data="array")
    bench = bench_of(subject_of_run(moco), str(array_file), device="cpu")
    weak, strong = (neighbours_of(bench, kind, 5, 4) for kind in ("weak", "contrastive"))
    assert not torch.equal(weak.queries, strong.queries)
    queries = to_float(bench.data.test[0][chosen_queries(bench.data.test[1], 5)])
    draws = Views([WEAK], (0, 0, 0), (1, 1, 1), 0).draws(0, torch.arange(5))[0]
    cut = replace(WEAK, size=16, crop=moco.recipe.views[0].crop)(queries, draws)
    assert (weak.queries.float() - 255 * cut).abs().max() < 0.501  # rounded


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_weak_and_a_contrastive_query(method: str) -> None:
    recipe = get_recipe("cifar10").replace(method=method)
    weak, strong = (query_view(recipe, kind) for kind in ("weak", "contrastive"))
    assert weak == replace(recipe.views[0], size=32, randaugment=0, jitter=0, gray=0, blur=0, solarize=0)
    assert strong.jitter > 0
    assert (weak.size, strong.size) == (32, 32)
    if method == "supervised":  # it trains on no strong view
        assert strong == STRONG


def test_a_neighbour_with_one_of_several_classes_in_common_is_right(
    make_run: Callable[..., Run], make_voc: Callable[[Path], Path], tmp_path: Path
) -> None:
    bench = bench_of(subject_of_run(make_run()), f"voc07={make_voc(tmp_path / 'voc')}", device="cpu")
    found = neighbours_of(bench, "as it is", 8)
    fit, held = (F.normalize(features, dim=1) for features in bench.features())
    shows = [
        [set(row.gt(0).nonzero()[:, 0].tolist()) for row in part[1]] for part in (bench.data.train, bench.data.test)
    ]
    for i, query in enumerate(chosen_queries(class_numbers(bench.data.test[1]), 8).tolist()):
        near = (fit @ held[query]).sort(descending=True).indices[:10].tolist()
        assert found.right[i].tolist() == [bool(shows[0][n] & shows[1][query]) for n in near]


def test_names_that_are_no_text_are_shown_all_the_same(
    make_run: Callable[..., Run], make_folder: Callable[..., Path]
) -> None:
    """Of classes and of runs; on a page, and in every figure that has names in it."""
    photos = make_folder(60)
    (photos / "a").rename(photos / os.fsdecode(b"a\xff\x1b[1m"))
    run = make_run(os.fsdecode(b"run\xfe"), data="folder")
    run.note({"data": str(photos)})
    assert main(["report", str(run.path), "--device", "cpu"]) == 0
    text = (run.path / "report.html").read_text(encoding="utf-8")
    assert "a\\udcff\\x1b[1m" in text
    for kind in ("neighbours", "map", "classes"):
        assert main(["figure", kind, str(run.path), "--device", "cpu"]) == 0
    found = run.read_evaluation("classes")  # anybody's file may hold such names, too
    assert found is not None
    run.write_evaluation("classes", found | {"classes": [os.fsdecode(b"\xff"), "b", "c"]})
    for words in (["report"], ["figure", "classes"]):
        assert main([*words, str(run.path), "--device", "cpu"]) == 0


@pytest.mark.parametrize("kind", ["neighbours", "map"])
def test_runs_on_different_pictures_are_not_drawn_with_the_names_of_one(
    make_run: Callable[..., Run], array_file: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    letters = array_file.with_name("letters.npz")
    with np.load(array_file) as arrays:
        np.savez(letters, classes=np.array(list("abc")), **arrays)
    words = ["figure", kind, "--device", "cpu", "--pictures", "12", "-o", str(array_file.with_name("figure.png"))]
    for name, place in (("first", array_file), ("second", letters)):
        run = make_run(name, data="array")
        run.note({"data": str(place)})
        words.append(str(run.path))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "first (ressl) is on pictures and second (ressl) on letters, which are not the same pictures" in said
    if kind == "map":
        assert main([*words, "--data", str(letters)]) == 0


def test_the_views_of_another_method_are_drawn(
    make_run: Callable[..., Run], array_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[list[str]] = []
    monkeypatch.setattr(views_command, "views_grid", lambda _, views, *rest: said.append([label for label, _ in views]))
    run = make_run(data="array")
    run.note({"data": str(array_file)})
    for method in ("clsa", "simclr"):
        assert main(["views", str(run.path), "--method", method, "--pictures", "1", "--draws", "1"]) == 0
        views = run.recipe.replace(method=method).views
        assert [label.split(": ", 1)[1] for label in said[-1]] == [describe(view) for view in views]
    assert [[label.split(":")[0] for label in labels] for labels in said] == [
        ["teacher", "student 1", "student 2"],
        ["view 1", "view 2"],  # it has no teacher
    ]


def test_pictures_without_labels_are_drawn_and_nothing_in_them_is_called_right_or_wrong(
    make_run: Callable[..., Run], make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(data="folder")
    run.note({"data": str(make_folder(40, classes=False))})
    seen: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (seen.append(figure), Path(path).touch())[1])
    for kind in ("neighbours", "map", "relations"):
        out = tmp_path / f"{kind}.png"
        assert main(["figure", kind, str(run.path), "-o", str(out), "--device", "cpu"]) == 0
        assert out.is_file()
    neighbours, plane, _ = seen
    words = [text.get_text() for text in neighbours.findobj(Text)]
    assert "query: weak" in words
    assert not any("right" in word or "red" in word for word in words)
    frames = {to_rgb(spine.get_edgecolor()) for spine in neighbours.findobj(Spine) if spine.get_visible()}
    assert to_rgb(WRONG) not in frames
    assert plane.legends == []
    assert main(["figure", "classes", str(run.path), "--device", "cpu"]) == 2  # which there are none of
