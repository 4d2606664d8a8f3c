"""From run folders to a page, and the page in a real browser."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from ressl import inspecting
from ressl.cli import main
from ressl.console import Silent
from ressl.data.sources import open_source
from ressl.data.views import Views
from ressl.errors import ResslError
from ressl.evaluating import bench_of, evaluate_each
from ressl.inspecting import chosen_queries, map_of, neighbours_of, relations_of, views_of
from ressl.methods import METHODS
from ressl.pretraining import pretrain
from ressl.recipes import get_recipe
from ressl.reporting import nearest_paper, report, settings
from ressl.runs import Run
from ressl.subjects import subject_of_run

SMALL = {
    "data": "array", "backbone": "resnet10", "stem": "medium", "width": 4, "image_size": 16, "batch_size": 16,
    "bn_groups": 2, "hidden_dim": 16, "output_dim": 8, "queue_size": 32, "epochs": 2, "warmup_epochs": 1.0,
    "knn_every": 1, "knn_k": 5,
}  # fmt: skip


def colours(n: int, seed: int) -> np.ndarray:
    images = np.random.default_rng(seed).integers(0, 120, (n, 16, 16, 3), dtype=np.uint8)
    for i in range(n):
        images[i, :, :, i % 3] += 130
    return images


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two small runs on the same pictures, one of them evaluated."""
    base = tmp_path_factory.mktemp("runs")
    file = base / "pictures.npz"
    labels = {"y_train": np.arange(72) % 3, "y_test": np.arange(30) % 3}
    np.savez(file, x_train=colours(72, 0), x_test=colours(30, 1), **labels)
    made = [
        pretrain(
            get_recipe("demo").replace(**SMALL, seed=seed), data=file, out=base / name, device="cpu", display=Silent()
        )
        for seed, name in ((0, "first"), (1, "<i>second"))
    ]
    list(evaluate_each(made[0], ["knn", "svm"], device="cpu", changes={"svm": {"shots": (2,), "draws": 2}}))
    return made


@pytest.fixture(scope="module")
def pages(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    both = tmp_path_factory.mktemp("pages") / "both.html"
    return report([runs[0]], device="cpu"), report(runs, both, device="cpu")


def test_the_page_holds_what_the_run_folder_says(runs: list[Run], pages: tuple[Path, Path]) -> None:
    text = pages[0].read_text()
    assert pages[0] == runs[0].path / "report.html"
    knn = runs[0].read_evaluation("knn")
    assert knn is not None
    assert f"{knn['top1']:.2f}" in text
    assert "SVM, 2 per class" in text
    assert str(runs[0].path) not in text  # no path of this machine
    assert runs[0].read_evaluation("classes") is not None  # made for the page


def test_the_map_is_made_once(runs: list[Run], pages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "tsne", lambda *a: pytest.fail("made again"))
    report([runs[0]], device="cpu")


def test_a_run_without_labels_or_pictures_has_a_page_too(runs: list[Run], tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x_train=colours(60, 2))
    text = report([runs[0]], tmp_path / "a.html", data=str(tmp_path / "bare.npz"), device="cpu").read_text()
    assert 'class="map"' in text
    assert 'class="wrong"' not in text
    text = report([runs[0]], tmp_path / "b.html", data=str(tmp_path / "gone.npz"), device="cpu").read_text()
    assert "could not be shown: there is no file" in text
    with pytest.raises(ResslError, match="at least one run"):
        report([])


def test_an_evaluation_of_an_earlier_step_is_left_out(runs: list[Run], tmp_path: Path) -> None:
    copy = Run(shutil.copytree(runs[0].path, tmp_path / "copy"))
    knn = copy.read_evaluation("knn")
    assert knn is not None
    copy.write_evaluation("knn", knn | {"step": 1, "top1": 12.3456})
    (copy.path / "evaluation" / "broken.json").write_text('{"by_k": 3}')
    text = report([copy], device="cpu").read_text()
    assert "12.35" not in text.split("Curves")[0].split("Numbers")[1]
    assert "The evaluation knn, made after step 1 of 8, of copy is left out." in text
    assert "The evaluation broken, which cannot be read, of copy is left out." in text


def test_runs_that_differ_in_the_seed_alone_have_a_mean(runs: list[Run], tmp_path: Path) -> None:
    twin = Run(shutil.copytree(runs[0].path, tmp_path / "twin"))
    (twin.path / "recipe.json").write_text(twin.recipe.replace(seed=5).to_json())
    knn = twin.read_evaluation("knn")
    assert knn is not None
    first = knn["top1"]
    twin.write_evaluation("knn", knn | {"top1": first - 4.0})
    text = re.sub(r"<[^>]+>", "|", report([runs[0], twin], tmp_path / "s.html", device="cpu").read_text())
    half = stats.t.ppf(0.975, 1) * np.std([first, first - 4], ddof=1) / np.sqrt(2)
    assert re.search(rf"kNN\|+{first:.2f}\|+{first - 4:.2f}\|+{first - 2:.2f} ±\xa0{half:.2f}", text)
    assert "mean of 2 seeds" in text
    assert "mean of" not in report([runs[0], runs[0]], tmp_path / "t.html", device="cpu").read_text()


def test_the_recipe_is_compared_with_the_nearest_of_the_paper() -> None:
    assert nearest_paper(get_recipe("cifar100").replace(epochs=3))[0] == "cifar100"
    assert nearest_paper(get_recipe("demo"))[0] == "cifar10"
    assert nearest_paper(get_recipe("demo").replace(image_size=64))[0] == "tiny-imagenet"
    for name in ("imagenet-r50", "imagenet-r50-4crops", "imagenet-r18"):
        assert nearest_paper(get_recipe(name).replace(seed=3)) == (name, get_recipe(name))
    for method in METHODS:  # each with the recipe that 'ressl pretrain cifar10 --method NAME' trains
        known, paper = nearest_paper(get_recipe("cifar10").replace(method=method, epochs=20))
        assert known == ("cifar10" if method == "ressl" else f"cifar10, {method}")
        assert paper == get_recipe("cifar10").replace(method=method)
    told = settings(get_recipe("cifar10"))
    assert told["head_batch_norm"] == "false"  # a default that no recipe names
    assert told["teacher view"].startswith("32 px: crop 0.2-1")


# --- what a run is looked into for ---


def test_neighbours_are_a_plain_search(runs: list[Run]) -> None:
    bench = bench_of(subject_of_run(runs[0]), device="cpu")
    found = neighbours_of(bench, "as it is", 5, 4)
    fit, held = bench.features()
    chosen = chosen_queries(bench.data.test[1], 5)
    assert bench.data.test[1][chosen].tolist()[:3] == [0, 1, 2]  # one of each class first
    cosine = torch.nn.functional.cosine_similarity(held[chosen][:, None], fit[None], dim=2)
    for q in range(5):
        order = cosine[q].argsort(descending=True)[:4]
        assert torch.equal(found.found[q], bench.data.train[0][order])
        assert found.right[q].tolist() == (bench.data.train[1][order] == bench.data.test[1][chosen[q]]).tolist()
    strong = neighbours_of(bench, "contrastive", 5, 4)
    assert strong.queries.shape == (5, 3, 16, 16)
    assert not torch.equal(strong.queries, found.queries)
    assert map_of(bench).xy.shape == (30, 2)


def test_relations_are_distributions_and_the_target_is_sharper(runs: list[Run]) -> None:
    images = torch.from_numpy(colours(4, 3)).permute(0, 3, 1, 2)
    found = relations_of(runs[0], images)
    assert found.before.shape == found.after.shape == (4, 32)
    torch.testing.assert_close(found.after.sum(1), torch.ones(4))
    assert bool((found.before.diff(dim=1) <= 0).all())
    entropy = lambda p: torch.special.entr(p).sum(1)
    assert bool((entropy(found.after) < entropy(found.before)).all())
    # The ratio of two entries is exp(difference of cosines / tau): the temperatures are those of the recipe.
    tau_s, tau_t = found.taus
    ratio = lambda p: (p[:, 0] / p[:, 3]).log()
    torch.testing.assert_close(ratio(found.after) * tau_t, ratio(found.before) * tau_s, rtol=1e-2, atol=1e-4)


def test_the_views_shown_are_the_ones_of_the_first_step(runs: list[Run]) -> None:
    recipe, source = runs[0].recipe, open_source("array", "train", runs[0].facts["data"])
    originals, views = views_of(recipe, source, 6, 2)
    order = torch.stack(originals)
    trained_on = Views(recipe.views, (0, 0, 0), (1, 1, 1), recipe.seed)(order, 0, torch.arange(6))
    for (label, shown), view in zip(views, trained_on, strict=True):
        assert (shown[:, 0].float() - 255 * view).abs().max() < 1
        assert not torch.equal(shown[:, 0], shown[:, 1])
        assert label.startswith(("teacher: 16 px", "student: 16 px"))


@pytest.mark.parametrize("kind", ["neighbours", "map", "relations", "classes", "curves"])
def test_every_figure_is_drawn(runs: list[Run], tmp_path: Path, kind: str) -> None:
    which = runs if kind in ("neighbours", "map") else runs[:1]
    assert (
        main(
            [
                "figure",
                kind,
                *(str(run.path) for run in which),
                "-o",
                str(tmp_path / "f.png"),
                "--device",
                "cpu",
                "--rows",
                "2",
            ]
        )
        == 0
    )
    with Image.open(tmp_path / "f.png") as picture:
        assert min(picture.size) > 200
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 30


def test_views_are_drawn_and_mistakes_are_said(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "v.png")
    assert main(["views", str(runs[0].path), "-o", out, "--pictures", "3", "--views", "weak", "strong,solarize=1"]) == 0
    assert Image.open(out).format == "PNG"
    for words, says in (
        (["views"], "nothing to look at"),
        (["views", "demo", "--views", "weak", "stong"], "did you mean 'strong'"),
        (["views", "demo", "--draws", "0"], "--draws must be at least 1"),
        (["figure", "mpa", str(runs[0].path)], "did you mean 'map'"),
        (["figure", "classes", *(str(run.path) for run in runs)], "classes shows one run"),
        (["report", "nowhere"], "nowhere is not a run folder"),
        (["evaluate", str(runs[0].path), "--protocol", "knn", "--shots", "3"], "none of knn has a --shots to change"),
        (["evaluate", str(runs[0].path), "--protocol", "transfer"], "transfer needs data to go to"),
    ):
        capsys.readouterr()
        assert main(words) == 2
        assert says in capsys.readouterr().err


# --- in a browser ---


@pytest.mark.parametrize(("width", "scheme"), [(1180, "light"), (390, "dark")])
def test_pages_in_a_browser(pages: tuple[Path, Path], browser: Any, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme, has_touch=width < 500)
    for path, maps in zip(pages, (1, 2), strict=True):
        page, said = context.new_page(), list[str]()
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, said=said: request.url.startswith("http") and said.append(request.url))
        page.goto(path.as_uri())
        assert page.locator(".map").count() == maps
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over the edge
        tip = page.locator("#tip")
        assert not tip.is_visible()
        for i in range(maps):
            point = page.locator(".map").nth(i).locator("circle").nth(1)
            point.scroll_into_view_if_needed()
            page.wait_for_timeout(150)  # scrolling puts a picture away, a frame later
            box = point.bounding_box()
            assert box is not None
            at = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            if width < 500:
                page.touchscreen.tap(*at)
            else:
                page.mouse.move(*at)
            tip.wait_for(state="visible", timeout=3000)
            assert tip.locator("span").text_content() in ("0", "1", "2")
            # The picture is really drawn: the canvas is not the blank one that every page starts with.
            drawn, blank = tip.locator("canvas").evaluate(
                "c => [c.toDataURL(), Object.assign(document.createElement('canvas'),"
                " {width: c.width, height: c.height}).toDataURL()]"
            )
            assert drawn != blank
            page.emulate_media(media="print")
            assert not tip.is_visible()
            page.emulate_media(media="screen")
        if width > 500:
            chart = page.locator(".chart").first
            chart.locator("svg").hover()
            assert "epoch" in chart.locator(".readout").text_content()
        page.locator(".legend button").first.click()
        assert page.locator(".map").first.locator("g.off").count() == 2  # the two other classes step back
        folded = page.locator("details:not([open])")
        assert folded.count() > 0
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # what is folded away would not be on paper
        assert folded.count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert folded.count() == page.locator("details").count()
        if maps == 2:
            heads = page.locator("section table").first.locator("th").all_text_contents()
            assert heads[1:3] == ["first", "<i>second"]
        assert said == []
        page.close()
    context.close()
