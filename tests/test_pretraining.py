"""Training as a user meets it: every recipe, folders with broken files, mistakes that leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ressl.data.base import FileSource
from ressl.data.sources import open_source, parse_data
from ressl.data.streaming import StreamingLoader
from ressl.encoder import open_images
from ressl.engine.processes import Team
from ressl.errors import ResslError
from ressl.pretraining import pretrain
from ressl.recipes import RECIPES, Recipe
from ressl.reproduce.ledger import record
from ressl.reproduce.schema import misfit
from ressl.runs import Run, build_method
from ressl.training import Settings, train

Tiny = Callable[..., Recipe]


# --- recipes ---


def reduced_data(name: str, root: Path) -> Path | None:
    """Something small in a form that the data set of this recipe is read from."""
    data = RECIPES[name].data
    if data == "shapes":
        return None
    draw = np.random.default_rng(0)
    side = {"stl10": 24, "imagenet": 28}.get(data, 20)
    for split, n in (("train", 24), ("test" if data.startswith("cifar") else "val", 8)):
        for i in range(n):
            folder = root / split / f"n0000000{i % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            size = (side + i % 3, side, 3) if data == "imagenet" else (side, side, 3)
            Image.fromarray(draw.integers(0, 256, size, dtype=np.uint8)).save(folder / f"{i}.png")
    return root


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_real_steps_at_reduced_size(tmp_path: Path, name: str, memory: Any) -> None:
    reduced: dict[str, Any] = {"width": 4, "image_size": 16, "batch_size": 8, "bn_groups": 2, "queue_size": 16}
    reduced |= {"hidden_dim": 16, "output_dim": 8, "epochs": 2, "warmup_epochs": 0, "knn_k": 3}
    data = reduced_data(name, tmp_path / "data")
    if data is None:  # 4,096 generated pictures: one step of many is enough
        reduced |= {"batch_size": 2048, "queue_size": 2048}
    recipe = RECIPES[name].replace(**reduced)
    start, shown = build_method(recipe).state_dict(), memory()
    run = pretrain(recipe, data=data, out=tmp_path / "run", device="cpu", workers=0, display=shown)
    assert ("warning: 24 of the" in shown.said) == (data is not None)  # a part of a set is no set
    end = run.checkpoint().part("method.")
    for part in ("backbone.conv1.weight", "head.0.weight", "teacher.module.0.conv1.weight", "queue.keys"):
        assert not torch.equal(start[part], end[part]), part
        assert end[part].isfinite().all()
    assert run.facts["steps"] == (4 if data is None else 6)
    assert 0 <= run.curve("knn")[-1][1] <= 100
    assert run.recipe == recipe


def test_a_blunt_teacher_is_warned_of_and_runs(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    shown = memory()
    recipe = tiny(data="array", epochs=1, teacher_temperature=0.2, student_temperature=0.1)
    run = pretrain(recipe, data=array_file, out=tmp_path / "a", device="cpu", display=shown)
    assert "warning: teacher_temperature 0.2 is not below student_temperature 0.1" in shown.said
    assert run.facts["steps"] == 4


def test_training_lowers_the_loss_and_learns(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    run = pretrain(
        tiny(data="array", epochs=10, lr=0.5), data=array_file, out=tmp_path / "a", device="cpu", display=memory()
    )
    loss = [value for _, value in run.curve("loss")]
    assert sum(loss[-2:]) < 0.98 * sum(loss[:2])
    assert run.curve("knn")[-1][1] >= 90  # three colours


def test_no_epochs_are_the_untrained_backbone(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    recipe = tiny(data="array", epochs=0)
    run = pretrain(recipe, data=array_file, out=tmp_path / "a", device="cpu", display=memory())
    plain = build_method(recipe).backbone.state_dict()
    assert all(torch.equal(plain[name], value) for name, value in run.backbone().state_dict().items())
    again = pretrain(out=run.path, resume=True, device="cpu", display=memory())
    assert [epoch for epoch, _ in again.curve("knn")] == [0]  # looked at once
    made = record(again)
    assert misfit(made) is None
    assert (made["steps"], made["images_per_second"]) == (0, None)


# --- folders ---


def test_a_folder_chooses_its_recipe_and_says_why(
    tmp_path: Path, make_folder: Callable[..., Path], memory: Any
) -> None:
    shown = memory()
    run = pretrain(
        data=make_folder(48), out=tmp_path / "run", device="cpu", display=shown, epochs=1, width=4, hidden_dim=8
    )
    assert "recipe chosen from the data" in shown.said
    assert run.recipe.name == "folder"
    assert run.recipe.epochs == 1
    assert run.facts["data"] == str((tmp_path / "photos").resolve())
    # three classes that differ in colour: the statistics are those of the pixels
    pictures = np.stack([np.asarray(Image.open(p)) for p in sorted((tmp_path / "photos").rglob("*.png"))]) / 255.0
    assert run.recipe.mean == pytest.approx(pictures.mean((0, 1, 2)), abs=1e-3)
    assert run.recipe.std == pytest.approx(pictures.std((0, 1, 2)), abs=1e-3)


@pytest.fixture(params=[(False, False), (True, False), (True, True)], ids=["alike", "different", "streamed"])
def sizes(request: pytest.FixtureRequest) -> tuple[bool, bool]:
    """Whether pictures differ in size, and whether they are streamed all the same."""
    mixed, streams = request.param
    if streams:
        request.getfixturevalue("streamed")
    return mixed, streams


def test_broken_files_are_skipped_counted_and_listed(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any, sizes: tuple[bool, bool]
) -> None:
    mixed, streams = sizes
    folder, shown = make_folder(60, mixed=mixed, broken=(3, 30)), memory()
    run = pretrain(tiny(data="folder"), data=folder, out=tmp_path / "run", device="cpu", workers=0, display=shown)
    listed = (run.path / "broken.txt").read_text().splitlines()
    assert sorted(Path(line.split("\t")[0]).name for line in listed) == ["003.png", "030.png"]
    assert all(line.split("\t")[1] for line in listed)
    if not streams:
        assert "2 broken files skipped, listed in broken.txt" in shown.said


def test_too_many_broken_files_stop_the_run_with_the_list(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any, sizes: tuple[bool, bool]
) -> None:
    mixed, streams = sizes
    broken = tuple(range(0, 60, 7))  # 9 of 60
    folder = make_folder(60, mixed=mixed, broken=broken)
    with pytest.raises(ResslError, match=r"pictures are broken") as caught:
        pretrain(tiny(data="folder"), data=folder, out=tmp_path / "run", device="cpu", workers=0, display=memory())
    assert "\n" not in str(caught.value)
    listed = tmp_path / "run" / "broken.txt"
    if not streams:
        assert str(listed) in str(caught.value)
        assert len(listed.read_text().splitlines()) == 9
    assert "000.png" in listed.read_text()
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_a_process_that_keeps_no_list_names_none(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any
) -> None:
    """Rank 0 lists what it met itself; another that met too many names the first."""
    recipe, place = tiny(data="folder"), torch.device("cpu")
    source = open_source("folder", "train", make_folder(60, broken=tuple(range(0, 60, 7))))
    loader = StreamingLoader(source, recipe.views, recipe.batch_size, place, recipe.seed)
    run = Run.create(tmp_path / "run", recipe, {})
    with pytest.raises(ResslError, match=r"pictures are broken.*\(the first: .*\.png: ") as caught:
        train(run, recipe, build_method(recipe), loader, None, Settings(), place, memory(), False, Team(rank=1))
    assert "broken.txt" not in str(caught.value)


def test_a_resumed_run_lists_a_broken_file_once(
    tmp_path: Path, make_folder: Callable[..., Path], memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun with a relative path, it goes on with the absolute one, which it has noted."""
    make_folder(48, broken=(7,))
    monkeypatch.chdir(tmp_path)
    small = {"epochs": 1, "width": 4, "hidden_dim": 8, "image_size": 16}
    pretrain(data="photos", out="run", device="cpu", display=memory(), **small)
    listed = Path("run/broken.txt").read_text()
    assert listed.split("\t")[0] == str(tmp_path.resolve() / "photos" / "b" / "007.png")
    pretrain(out="run", resume=True, device="cpu", display=memory())
    assert Path("run/broken.txt").read_text() == listed


def test_a_broken_file_with_an_odd_name_is_listed_too(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any
) -> None:
    folder = make_folder(48)
    for name in (b"no-utf8-\xff.png", b"two\nlines.png"):
        with open(os.path.join(os.fsencode(folder), b"a", name), "wb") as file:
            file.write(b"nothing")
    run = pretrain(tiny(data="folder", epochs=1), data=folder, out=tmp_path / "run", device="cpu", display=memory())
    listed = (run.path / "broken.txt").read_text(encoding="utf-8")
    assert listed.count("\n") == 2
    assert "no-utf8-" in listed


def test_pictures_without_labels_train_without_knn(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any
) -> None:
    shown = memory()
    folder = make_folder(48, classes=False)
    run = pretrain(tiny(data="folder"), data=folder, out=tmp_path / "run", device="cpu", display=shown)
    assert "no labels, so no kNN" in shown.said
    assert run.curve("knn") == []
    assert len(run.curve("loss")) > 0


def test_one_picture_of_another_size_among_many_is_no_obstacle(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any
) -> None:
    """Sizes are judged by 256 of the files; the odd one is none of them."""
    folder, shown = make_folder(300, side=8), memory()
    paths = sorted(str(p) for p in folder.rglob("*.png"))
    looked_at = set(np.linspace(0, 299, 256, dtype=np.int64).tolist())
    odd = next(i for i in range(300) if i not in looked_at)
    Image.open(paths[odd]).resize((20, 24)).save(paths[odd])
    recipe = tiny(data="folder", epochs=1, batch_size=128, queue_size=128)
    run = pretrain(recipe, data=folder, out=tmp_path / "run", device="cpu", workers=0, display=shown)
    assert "resident: 300 pictures of up to 24 x 20 are 59 kB on cpu" in shown.said
    assert len(run.curve("knn")) == 1


def test_nothing_is_left_behind_by_a_mistake(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    """The corrected command must not find a run folder in its way."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"engine": "grahp"}, "did you mean 'graph'"),
        ({"precision": "fp23"}, "did you mean 'fp32'"),
        ({"device": "tpu"}, "unknown device"),
        ({"backbone": "resnet19"}, "did you mean 'resnet18'"),
        ({"teacher_momentum": 1.5}, "momentum"),
        ({"output_dim": 0}, "output_dim must be at least 1, not 0"),
        ({"hidden_dim": -1}, "hidden_dim must be at least 1, not -1"),
        ({"batch_size": 96, "queue_size": 96}, "a batch of 96 does not fit 72 pictures"),
        ({"data": tmp_path / "none.npz"}, "there is no file"),
    ]
    for changes, says in wrong:
        kind: dict[str, Any] = {"data": array_file, "device": "cpu"} | changes
        with pytest.raises(ResslError, match=says) as caught:
            pretrain(tiny(data="array"), out=tmp_path / "run", display=memory(), **kind)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists(), changes


def test_an_unwritable_place_is_said_before_any_picture_is_read(
    tmp_path: Path, make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, memory: Any
) -> None:
    photos = make_folder(48)
    (tmp_path / "locked").mkdir()
    (tmp_path / "file").touch()
    allowed = os.access  # root, as who tests may be, is allowed all
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path) and allowed(path, mode))
    monkeypatch.setattr(FileSource, "read", lambda *_: pytest.fail("a picture was read"))
    monkeypatch.setattr(FileSource, "open", lambda *_: pytest.fail("a picture was opened"))
    for out, says in (("locked/a/run", "locked may not be written to"), ("file/run", "file is no folder")):
        with pytest.raises(ResslError, match=rf"cannot write the run folder .*{out}: .*{says}; choose another --out"):
            pretrain(data=photos, out=tmp_path / out, device="cpu", display=memory())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    with pytest.raises(ResslError, match=r"runs is no folder; choose another --out"):
        pretrain(data=photos, device="cpu", display=memory())
    assert not list((tmp_path / "locked").iterdir())


def test_labels_that_are_all_missing_are_no_labels(tmp_path: Path, tiny: Tiny, memory: Any) -> None:
    path, display = tmp_path / "a.npz", memory()
    np.savez(path, x=np.zeros((32, 16, 16, 3), np.uint8), y=np.full(32, -1))
    pretrain(tiny(data="array", epochs=1), data=path, out=tmp_path / "a", device="cpu", display=display)
    assert "no labels" in display.said


def test_broken_files_of_a_streamed_run_are_counted(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any, streamed: None
) -> None:
    display = memory()
    photos = make_folder(n=48, mixed=True, classes=False, broken=(3,))
    pretrain(tiny(data="folder", epochs=1), data=photos, out=tmp_path / "a", device="cpu", workers=0, display=display)
    assert "1 broken files skipped, listed in" in display.said


def test_data_that_is_no_path_is_said(memory: Any) -> None:
    with pytest.raises(ResslError, match="data wants a path, not ndarray"):
        pretrain(data=np.zeros((40, 8, 8, 3), np.uint8), display=memory())  # type: ignore[arg-type]


@pytest.mark.parametrize("which", ["data", "out"])
def test_an_empty_place_is_not_the_current_folder(
    which: str, make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, memory: Any
) -> None:
    """What "$PHOTOS" is where nobody set it."""
    monkeypatch.chdir(make_folder(48))
    with pytest.raises(ResslError, match=f"{which} is empty"):
        pretrain(**{"data": ".", "out": "run", which: ""}, device="cpu", display=memory(), epochs=0)
    assert sorted(path.name for path in Path().iterdir()) == ["a", "b", "c"]
    with pytest.raises(ResslError, match="is empty"):
        open_images("")
    with pytest.raises(ResslError, match="is empty"):
        parse_data("")
