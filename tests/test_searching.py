"""Search: exact against brute force, the index against the exact, the sheet against its pictures."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ressl import featurefiles, searching
from ressl.cli import main
from ressl.embedding import embed
from ressl.errors import ResslError
from ressl.featurefiles import open_features
from ressl.loading import load
from ressl.runs import Run
from ressl.searching import draw_sheet, nearest_exact, nearest_indexed, search


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESSL_CACHE", str(tmp_path / "cache"))


def test_exact_search_is_brute_force(random_features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(featurefiles, "BLOCK", 128)  # many blocks
    file, rows = open_features(random_features), np.load(random_features).astype(np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    for query in (rows[400], np.random.default_rng(1).normal(size=16)):
        cosine = unit @ (query / np.linalg.norm(query))
        expected = np.lexsort((np.arange(1000), -cosine.astype(np.float32)))[:30]
        found, values = nearest_exact(file, query.astype(np.float32), 30)
        np.testing.assert_allclose(values, cosine[expected], atol=1e-6)
        np.testing.assert_allclose(cosine[found], cosine[expected], atol=1e-6)  # but for the order of equals
    assert list(nearest_exact(file, rows[400].astype(np.float32), 2)[0]) == [400, 500]
    assert len(nearest_exact(file, rows[0].astype(np.float32), 5000)[0]) == 1000


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_a_picture_finds_itself_and_its_like(
    make_run: Callable[..., Run],
    make_folder: Callable[..., Path],
    tmp_path: Path,
    ending: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, folder = make_run(), make_folder(30)
    features = tmp_path / f"f{ending}"
    embed(run.path, folder, features, device="cpu")
    picture = folder / "b" / "004.png"
    sheet = tmp_path / "sheet.png"
    words = ["search", str(features), str(picture), "--model", str(run.path), "-k", "7", "-o", str(sheet)]
    assert main([*words, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    lines = re.findall(r"^ +(\d+)  (-?\d\.\d{4})  (.*)$", out, re.MULTILINE)
    assert [int(line[0]) for line in lines] == list(range(1, 8))
    assert lines[0][1:] == ("1.0000", str(picture))
    assert f"contact sheet: {sheet}" in out
    bank = open_features(features).read()
    query = bank[list(open_features(features).paths).index(str(picture))]
    cosine = bank @ query / np.linalg.norm(bank, axis=1) / np.linalg.norm(query)
    assert [line[2] for line in lines] == [open_features(features).paths[i] for i in np.argsort(-cosine)[:7]]
    assert search(features, picture, k=1)[0].path == str(picture)  # the file knows its model
    assert search(features, picture, k=3, index="usearch")[0].path == str(picture)


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_pictures_and_model_are_found_from_any_folder(
    make_run: Callable[..., Run],
    make_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ending: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run("run")
    make_folder(6)
    features = f"f{ending}"
    embed("run", "photos", features, device="cpu")
    assert [found.path for found in search(features, "photos/a/000.png", k=1)] == ["photos/a/000.png"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ["search", f"../{features}", "../photos/a/000.png", "-k", "3", "-o", "s.png", "--device", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "1.0000  ../photos/a/000.png" in out
    assert "could not be opened" not in out
    sheet = lambda: Image.open("s.png").getpixel((12 + 80, 12 + 206 + 80))
    assert sheet() == Image.open("../photos/a/000.png").getpixel((8, 8))
    # Moved: nothing is drawn for what is, unless somebody says where.
    (tmp_path / "photos").rename(tmp_path / "moved")
    Path("s.png").unlink()
    words[2] = "../moved/a/000.png"
    assert main(words) == 2
    assert "3 of 3 pictures could not be opened; say where they are: --images FOLDER" in capsys.readouterr().err
    assert not Path("s.png").exists()
    assert main([*words, "--images", "../moved"]) == 0
    assert sheet() == Image.open("../moved/a/000.png").getpixel((8, 8))
    (tmp_path / "moved" / "a" / "003.png").unlink()
    words[words.index("3")] = "6"
    assert main([*words, "--images", "../moved"]) == 0
    assert "1 of 6 pictures could not be opened" in capsys.readouterr().out
    (tmp_path / "run").rename(tmp_path / "moved-run")
    assert main([*words, "--images", "../moved"]) == 2
    assert re.search(r"was made by run, which is not there; add --model MODEL\n", capsys.readouterr().err)
    assert main([*words, "--images", "../moved", "--model", "../moved-run"]) == 0


@pytest.mark.parametrize("index", ["exact", "usearch"])
def test_features_that_are_none_are_said(make_run: Callable[..., Run], tmp_path: Path, index: str) -> None:
    run, picture = str(make_run().path), str(tmp_path / "a.png")
    Image.new("RGB", (16, 16)).save(picture)
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("usearch")
    rows = np.ones((5, 32), np.float32)
    rows[3, 7] = np.nan
    np.save(tmp_path / "nan.npy", rows)
    np.save(tmp_path / "empty.npy", rows[:0])
    schema = pyarrow.schema([("path", pyarrow.string()), ("embedding", pyarrow.list_(pyarrow.float32(), 32))])
    for name, lists in {"null": [[1.0] * 32, None], "none": []}.items():
        table = pyarrow.table({"path": ["a", "b"][: len(lists)], "embedding": lists}, schema=schema)
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    mistakes = {
        "nan.npy": r"row 3 of .*nan\.npy holds numbers that are not finite",
        "empty.npy": "no rows to search|cannot be read as features",
        "null.parquet": r"null\.parquet has rows without an embedding",
        "none.parquet": "no rows to search",
    }
    for name, says in mistakes.items():
        with pytest.raises(ResslError, match=says):
            search(tmp_path / name, picture, run, index=index, device="cpu")
    np.save(tmp_path / "fine.npy", np.ones((5, 32), np.float32))
    backbone, transform = load(run)
    with torch.no_grad():
        next(backbone.parameters()).fill_(np.nan)
    with pytest.raises(ResslError, match=r"gives numbers for .*a\.png that are not finite"):
        search(tmp_path / "fine.npy", picture, (backbone, transform), index=index, device="cpu")


def test_the_sheet_shows_the_query_and_what_was_found(tmp_path: Path) -> None:
    colours = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]
    found = []
    for i, colour in enumerate(colours):
        Image.new("RGB", (40, 40), colour).save(tmp_path / f"{i}.png")
        found.append(searching.Found(i, 1 - i / 10, str(tmp_path / f"{i}.png")))
    found.append(searching.Found(3, 0.1, str(tmp_path / "gone.png")))
    sheet = Image.open(draw_sheet(tmp_path / "2.png", found, tmp_path / "s.png"))
    middle = lambda row, column: sheet.getpixel((12 + column * 172 + 80, 12 + row * 206 + 80))
    assert middle(0, 0) == colours[2]
    assert [middle(1, c) for c in range(3)] == colours
    assert middle(1, 3) == (0xE3, 0xE8, 0xEC)  # gone
    array = np.stack([np.full((8, 8, 3), c, np.uint8) for c in (5, 60, 120, 200)])
    sheet = Image.open(draw_sheet(tmp_path / "2.png", found, tmp_path / "s.png", array))
    assert [middle(1, c)[0] for c in range(4)] == [5, 60, 120, 200]


def test_mistakes_are_one_sentence(
    make_run: Callable[..., Run],
    make_folder: Callable[..., Path],
    random_features: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run("run")
    make_run("other", seed=3)
    picture = str(make_folder(3) / "a" / "000.png")
    embed("run", "photos", "f.npy", device="cpu")
    mistakes = [
        (["none.npy", picture], r"there is no feature file none\.npy; make one: ressl embed"),
        (["f.npy", "none.png"], r"there is no picture none\.png"),
        (["r.npy", picture], "does not say which model made it; add --model"),
        (["r.npy", picture, "--model", "run"], "gives 32 numbers per picture, r.npy has 16"),
        (["f.npy", picture, "--model", "other"], "was made by another model"),
        (["f.npy", picture, "-k", "0"], "-k must be at least 1"),
        (["f.npy", picture, "--index", "exat"], "did you mean 'exact'"),
        (["f.npy", picture, "-o", "x.jpg"], r"is a \.png, not x\.jpg"),
        (["f.npy", "f.paths.txt"], r"f\.paths\.txt cannot be read: not a picture"),
    ]
    for words, says in mistakes:
        assert main(["search", *words]) == 2
        err = capsys.readouterr().err
        assert re.search(says, err), err
        assert err.count("\n") == 1
    (tmp_path / "f.paths.txt").write_text("a\n")
    with pytest.raises(ResslError, match=r"3 rows but 1 names in f\.paths\.txt"):
        open_features("f.npy")
    monkeypatch.setitem(sys.modules, "usearch", None)
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(ResslError, match=r"needs usearch: pip install 'ressl\[search\]', or use --index exact"):
        nearest_indexed(open_features("r.npy"), np.zeros(16, np.float32), 3, print)
