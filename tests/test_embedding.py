"""Features in files: the model's own, whatever the workers, with broken files and odd names."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ressl
from ressl.cli import main
from ressl.embedding import embed
from ressl.encoder import Encoder
from ressl.engine.folding import fold
from ressl.errors import ResslError
from ressl.featurefiles import open_features
from ressl.loading import Transform
from ressl.measuring import Bench
from ressl.nn import build_backbone
from ressl.recipes.typed import plain
from ressl.runs import Run
from ressl.subjects import subject_of_run

Model = tuple[torch.nn.Module, Transform]


def one_by_one(model: Model, paths: list[str]) -> np.ndarray:
    backbone, transform = model
    with torch.no_grad():
        return torch.cat([backbone(transform(Image.open(path))[None]) for path in paths]).numpy()


def test_rows_are_what_the_loaded_model_says(model: Model, make_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder(30, mixed=True, side=24)
    found = embed(model, folder, tmp_path / "f.npy", workers=2, batch_size=7)
    assert list(found.paths) == sorted(str(p) for p in folder.rglob("*.png"))
    expected = one_by_one(model, list(found.paths))
    # Pillow resizes here and torchvision there: a level of 255 apart in places.
    np.testing.assert_allclose(found.features, expected, atol=0.02 * np.abs(expected).max())
    unresized = embed((model[0], Transform(24, 24, (0, 0, 0), (1, 1, 1))), make_folder(9, side=24, name="same"))
    expected = one_by_one((model[0], Transform(24, 24, (0, 0, 0), (1, 1, 1))), list(unresized.paths))
    np.testing.assert_allclose(unresized.features, expected, atol=1e-5)


def test_a_photograph_that_lies_on_its_side_is_turned_everywhere(model: Model, tmp_path: Path) -> None:
    """As a camera held upright leaves it: the pixels lie, and EXIF says how to turn them."""
    path, exif = tmp_path / "a.jpg", Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((24, 16)).save(path, quality=95, exif=exif)
    model = model[0], Transform(16, 16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    found = embed(model, path, device="cpu").features
    np.testing.assert_allclose(found, one_by_one(model, [str(path)]), atol=1e-5)
    lying = Image.open(path).convert("RGB")
    lying.getexif().clear()
    assert np.abs(found - model[0](model[1](np.asarray(lying))[None]).detach().numpy()).max() > 0.01
    deep = Image.fromarray(np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16))  # 16 bits
    deep.save(tmp_path / "deep.png")
    rows = embed(model, tmp_path / "deep.png", device="cpu").features
    np.testing.assert_allclose(rows, one_by_one(model, [str(tmp_path / "deep.png")]), atol=1e-5)


@pytest.mark.parametrize("resize", [16, 19])
def test_evaluation_sees_the_pixels_that_embed_sees(
    tmp_path: Path,
    tiny: Callable[..., Any],
    make_folder: Callable[..., Path],
    memory: Any,
    resize: int,
) -> None:
    """Pictures of many sizes, larger than the input: else they would be resized twice on one of the two ways."""
    recipe = tiny(data="folder", epochs=0, image_size=16)
    recipe = recipe.replace(linear={**plain(recipe.linear), "resize": resize})
    folder = make_folder(45, mixed=True, side=50)
    run = ressl.pretrain(recipe, data=folder, out=tmp_path / "run", device="cpu", display=memory())
    bench = Bench(subject_of_run(run), "folder", str(folder), torch.device("cpu"), torch.float32, memory())
    mine = torch.cat(bench.features()).numpy()
    theirs = np.asarray(embed(run.path, folder).features)
    nearest = np.abs(mine[:, None] - theirs[None]).max(-1).min(1)  # evaluation holds some out, so the order differs
    assert nearest.max() < 1e-5


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_the_number_of_workers_changes_nothing(
    model: Model, make_folder: Callable[..., Path], tmp_path: Path, ending: str
) -> None:
    folder = make_folder(30, mixed=True, broken=(3, 12))
    files = []
    for workers in (0, 1, 5):
        out = tmp_path / f"w{workers}{ending}"
        found = embed(model, folder, out, workers=workers, batch_size=4)
        assert found.features.shape == (28, 32)
        assert sorted(Path(p).name for p in found.broken) == ["003.png", "012.png"]
        listed = out.with_name(out.name + ".broken.txt").read_text().splitlines()
        assert [line.split("\t")[0] for line in listed] == list(found.broken)
        files.append([p.read_bytes() for p in (out, *tmp_path.glob(f"w{workers}.paths.txt"))])
        assert not list(tmp_path.glob("*.parts"))
    assert files[0] == files[1] == files[2]


FORMS: dict[str, Callable[[Path, Path], Any]] = {
    "folder": lambda folder, tmp: folder,
    "list": lambda folder, tmp: sorted(folder.rglob("*.png")),
    "text": lambda folder, tmp: _text(tmp / "list.txt", folder),
    "array": lambda folder, tmp: np.stack([np.asarray(Image.open(p)) for p in sorted(folder.rglob("*.png"))]),
    "npy": lambda folder, tmp: _saved(tmp / "a.npy", FORMS["array"](folder, tmp)),
    "floats": lambda folder, tmp: _saved(tmp / "a.npy", FORMS["array"](folder, tmp).astype(np.float32) / 255),
    "tensor": lambda folder, tmp: torch.from_numpy(FORMS["array"](folder, tmp)),
    "channels first": lambda folder, tmp: FORMS["tensor"](folder, tmp).permute(0, 3, 1, 2),
}


def _text(path: Path, folder: Path) -> Path:
    path.write_text("".join(f"{p.relative_to(path.parent)}\n" for p in sorted(folder.rglob("*.png"))))
    return path


def _saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("resize", [16, 18])
def test_every_form_of_pictures_gives_the_same_rows(
    model: Model, make_folder: Callable[..., Path], tmp_path: Path, form: str, resize: int
) -> None:
    folder, model = make_folder(10), (model[0], Transform(16, resize, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    expected = embed(model, folder)
    found = embed(model, FORMS[form](folder, tmp_path))
    assert len(found.paths) == 10
    np.testing.assert_allclose(found.features, expected.features, atol=1e-6)


def test_file_names_of_any_kind_come_back(model: Model, tmp_path: Path) -> None:
    names = ["plain.png", "two\nlines.png", '"quoted".png', "tab\tand\x85\u2028.png", os.fsdecode(b"no-utf8-\xff.png")]
    for name in names:
        Image.new("RGB", (16, 16)).save(tmp_path / name)
    found = embed(model, tmp_path, tmp_path / "f.npy")
    assert sorted(found.paths) == sorted(str(tmp_path / name) for name in names)
    assert all(os.path.exists(path) for path in open_features(tmp_path / "f.npy").paths)


def test_npy_and_parquet_agree(model: Model, make_folder: Callable[..., Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = make_folder(11)
    found = embed(model, folder, tmp_path / "f.npy")
    embed(model, folder, tmp_path / "f.parquet")
    table = parquet.read_table(tmp_path / "f.parquet")
    assert table.column_names == ["path", "embedding"]
    assert table["path"].to_pylist() == list(found.paths)
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), found.features)
    np.testing.assert_array_equal(open_features(tmp_path / "f.parquet").read(), np.load(tmp_path / "f.npy"))
    assert (tmp_path / "f.paths.txt").read_text().splitlines() == list(found.paths)


@pytest.mark.parametrize("stem", ["small", "medium", "imagenet"])
def test_the_folded_network_that_a_gpu_uses_gives_the_same_rows(stem: Any) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", stem, 4).eval()
    encoder = Encoder((backbone, Transform(16, 16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))), "cpu")
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    plain = encoder(images)
    encoder._fast = fold(backbone, torch.float32)
    torch.testing.assert_close(encoder(images), plain, rtol=1e-4, atol=1e-5)


PIXELS = np.zeros((2, 16, 16, 3), np.uint8)
NO_PICTURES: list[tuple[Any, str]] = [
    (list(PIXELS), "cannot be taken from list of ndarray; give a folder"),
    (["a.png", Image.fromarray(PIXELS[0])], "from list of Image"),
    (Image.fromarray(PIXELS[0]), "from Image"),
    (None, "from NoneType"),
    (torch.zeros(2, 3, 16, 16), "N x 3 x H x W or N x H x W x 3, not float32 of shape"),
    (torch.zeros(3, 16, 16, dtype=torch.uint8), r"not uint8 of shape \(3, 16, 16\)"),
    (np.zeros((0, 4, 4, 3), np.uint8), r"of shape \(0, 4, 4, 3\)"),
    ([], "no paths in the list"),
]


@pytest.mark.parametrize(("images", "says"), NO_PICTURES)
def test_what_are_no_pictures_is_said_in_python_too(model: Model, images: Any, says: str) -> None:
    with pytest.raises(ResslError, match=says):
        embed(model, images, device="cpu")


MISTAKES: list[tuple[list[str], str]] = [
    (["none", "photos", "-o", "f.npy"], "there is nothing at none"),
    (["run", "none", "-o", "f.npy"], "there are no pictures at none; give a folder"),
    (["run", "empty.txt", "-o", "f.npy"], r"empty\.txt lists no pictures"),
    (["run", "photos", "-o", "f.csv"], r"written as \.npy or \.parquet, not f\.csv"),
    (["run", "photos", "-o", "empty.txt/f.npy"], "cannot write"),
    (["run", "photos"], "-o/--out"),
    (["run", "photos", "-o", "f.npy", "--workers", "-1"], "--workers must be at least 0"),
    (["run", "photos", "-o", "f.npy", "--batch-size", "0"], "--batch-size must be at least 1"),
    (["run", "broken", "-o", "f.npy"], "none of the 4 pictures can be read"),
]


def test_a_mistake_is_one_sentence(
    make_run: Callable[..., Run],
    make_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run()
    make_folder(4)
    make_folder(4, broken=(0, 1, 2, 3), name="broken")
    (tmp_path / "empty.txt").touch()
    for words, says in MISTAKES:
        assert main(["embed", *words, *([] if len(words) < 3 else ["--device", "cpu"])]) == 2
        err = capsys.readouterr().err
        assert re.search(says, err), err
        assert err.count("\n") == 1
    assert not list(tmp_path.glob("f.*"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["embed", "run", "photos", "-o", "f.parquet"]) == 2
    assert "needs pyarrow: pip install 'ressl[parquet]', or use .npy" in capsys.readouterr().err
    with pytest.raises(ResslError, match="uint8 of shape N x H x W x 3, not float64"):
        ressl.embed("run", np.zeros((3, 4, 4, 3)))
    assert main(["embed", "run", "photos", "-o", "f.npy", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "4 pictures as 32 numbers each in f.npy" in out
    assert "next: ressl search f.npy" in out
    Path(" sp ace").mkdir()
    assert main(["embed", "run", "photos", "-o", " sp ace/f.npy", "--device", "cpu"]) == 0
    hint = capsys.readouterr().out.split("next: ")[1]
    assert shlex.split(hint) == ["ressl", "search", " sp ace/f.npy", "PICTURE", "--model", "run"]
