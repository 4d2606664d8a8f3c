"""A run as a user loads it: the trained backbone, and a transform that agrees with torchvision's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from PIL import Image

import ressl
from ressl.embedding import embed
from ressl.errors import ResslError
from ressl.evaluating import evaluate
from ressl.evaluation.features import extract
from ressl.loading import Transform, load
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.reporting import report
from ressl.runs import Run, build_method


@pytest.fixture
def run(tmp_path: Path, tiny: Callable[..., Recipe], array_file: Path, memory: Any) -> Run:
    return pretrain(tiny(data="array", epochs=1), data=array_file, out=tmp_path / "run", device="cpu", display=memory())


def test_the_loaded_model_gives_the_features_that_evaluation_sees(run: Run, array_file: Path) -> None:
    model, transform = load(run.path)
    assert not model.training
    assert ressl.load is load
    pictures = np.load(array_file)["x_test"]
    recipe = run.recipe
    reference = extract(
        run.backbone(), torch.from_numpy(pictures).permute(0, 3, 1, 2), mean=recipe.mean, std=recipe.std, batch_size=5
    )
    with torch.no_grad():
        ours = model(torch.stack([transform(Image.fromarray(p)) for p in pictures]))
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
    untrained = build_method(recipe).backbone
    assert not torch.equal(model.state_dict()["conv1.weight"], untrained.state_dict()["conv1.weight"])
    trained = run.checkpoint().part("method.backbone.")
    assert all(torch.equal(t, trained[name]) for name, t in model.state_dict().items())


def test_a_run_is_taken_where_its_folder_is(run: Run, tmp_path: Path) -> None:
    folder = str(run.path)
    assert repr(run) == f"Run({folder!r})"
    mine, theirs = (load(one)[0].state_dict() for one in (run, folder))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    pictures = np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3), dtype=np.uint8)
    rows = [embed(one, pictures, device="cpu").features for one in (run, folder)]
    assert np.array_equal(*rows)
    pages = [report(one, tmp_path / f"{i}.html", device="cpu") for i, one in enumerate((run, folder, [run]))]
    assert pages[0].read_bytes() == pages[1].read_bytes() == pages[2].read_bytes()
    with pytest.raises(ResslError, match="one protocol by name"):
        evaluate(run, ["knn", "svm"])  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (16, 16), (20, 20), (9, 50), (11, 11)])
def test_the_transform_is_torchvision_s(shape: tuple[int, int]) -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    reference = T.Compose(
        [T.PILToTensor(), T.Resize(20, antialias=True), T.CenterCrop(16), T.ToDtype(torch.float32, scale=True),
         T.Normalize(mean, std)]
    )  # fmt: skip
    ours, theirs = Transform(16, 20, mean, std), reference(Image.fromarray(picture))
    for form in (Image.fromarray(picture), picture, torch.from_numpy(picture).permute(2, 0, 1)):
        out = ours(form)
        assert out.shape == (3, 16, 16)
        torch.testing.assert_close(out, theirs)


def test_pictures_of_any_mode_become_rgb() -> None:
    ours = Transform(16, 16, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    gray = Image.fromarray(np.full((16, 16), 51, np.uint8))
    torch.testing.assert_close(ours(gray), torch.full((3, 16, 16), 0.2))
    assert ours(Image.new("RGBA", (30, 20))).shape == (3, 16, 16)
    assert ours(Image.new("P", (30, 20))).shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        ("a.png", r"not a path: open it with PIL\.Image\.open"),
        (Path("a.png"), "not a path"),
        (np.zeros((16, 16, 3)), r"not float64 of shape \(16, 16, 3\)"),
        (np.zeros((3, 16, 16), np.uint8), r"not uint8 of shape \(3, 16, 16\)"),
        (np.zeros((2, 16, 16, 3), np.uint8), r"takes one picture.*not uint8 of shape \(2, 16, 16, 3\)"),
        (torch.zeros(16, 16, 3), "in 0..1, not float32"),
        (None, "not NoneType"),
        (torch.full((3, 8, 8), 200.0), "float32 of shape .* with values outside 0..1"),
        (torch.full((3, 8, 8), 200), "int64 of shape"),
    ],
)
def test_what_is_no_picture_is_said_in_one_sentence(picture: Any, says: str) -> None:
    with pytest.raises(ResslError, match=says):
        Transform(16, 16, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))(picture)


def test_what_cannot_be_loaded_is_said_in_one_sentence(tmp_path: Path, run: Run) -> None:
    with pytest.raises(ResslError, match="there is nothing at"):
        load(tmp_path / "none")
    with pytest.raises(ResslError, match="is not a run folder"):
        load(tmp_path)
    values = json.loads((run.path / "recipe.json").read_text())
    (run.path / "recipe.json").write_text(json.dumps(values | {"width": 8}))
    with pytest.raises(ResslError, match="is of another recipe: its width is 4, not 8") as caught:
        load(run.path)
    assert "\n" not in str(caught.value)
    (run.path / "recipe.json").write_text("{")
    with pytest.raises(ResslError, match="is not JSON"):
        load(run.path)
    (run.path / "recipe.json").write_text(json.dumps(values))
    for path in run.checkpoints.paths():
        path.unlink()
    with pytest.raises(ResslError, match="there is no checkpoint"):
        load(run.path)
