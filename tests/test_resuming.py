"""Runs that are stopped, resumed or made again: equal to their twins, or refused with a reason."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from ressl.continuing import paced
from ressl.engine.loop import Rhythm
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.runs import Run

Tiny = Callable[..., Recipe]
RHYTHM = Rhythm(log_steps=3, checkpoint_minutes=1e9)


def stop(signum: int = signal.SIGINT) -> None:
    signal.raise_signal(signum)


def assert_twins(a: Run, b: Run) -> None:
    """Every tensor to the bit, and every row of the metrics but for the speed."""
    one, two = a.checkpoint(), b.checkpoint()
    assert one.tensors.keys() == two.tensors.keys()
    assert {"method.queue.keys", "method.shuffle.count", "engine.ring", "random.cpu"} <= one.tensors.keys()
    assert any(name.startswith("optimiser.") for name in one.tensors)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, two.tensors[name]), name
    assert one.facts == two.facts
    rows = [[{k: v for k, v in row.items() if k != "images_per_second"} for row in run.metrics()] for run in (a, b)]
    assert rows[0] == rows[1]
    assert len(rows[0]) > 3


def test_the_time_of_a_process_that_was_killed_counts(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("ressl.engine.loop.time", SimpleNamespace(monotonic=lambda: next(clock)))
    recipe, out = tiny(data="array", epochs=2), tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(recipe, data=array_file, out=out, device="cpu", rhythm=RHYTHM, display=memory(6, stop))
    run = Run.open(out)
    speeds = {row["step"]: row["images_per_second"] for row in run.metrics() if "images_per_second" in row}
    logged = sum((after - before) * 16 / speeds[after] for before, after in itertools.pairwise([0, *speeds]))
    assert logged >= 10
    run.note({"seconds": 0.0})  # as if nobody had come to write it down
    pretrain(out=out, resume=True, device="cpu", display=memory())
    assert logged < run.facts["seconds"] < logged + 60


def test_a_run_stopped_twice_in_the_middle_of_epochs_equals_an_undisturbed_one(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any
) -> None:
    recipe = tiny(data="array", epochs=4)  # 72 pictures in batches of 16: 4 steps an epoch
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=1e9)
    kind: dict[str, Any] = {"data": array_file, "device": "cpu", "rhythm": rhythm}
    whole = pretrain(recipe, out=tmp_path / "a", display=memory(), **kind)
    torch.manual_seed(1234)  # what the process drew before must not matter
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "b", display=memory(6, stop), **kind)
    with pytest.raises(Interrupted):
        pretrain(out=tmp_path / "b", resume=True, device="cpu", rhythm=rhythm, display=memory(11, stop))
    assert "finished" not in Run.open(tmp_path / "b").facts
    shown = memory()
    parts = pretrain(out=tmp_path / "b", resume=True, device="cpu", rhythm=rhythm, display=shown)
    assert "resumed after step 11 of 16" in shown.said
    assert shown.steps[0] == 12
    assert_twins(whole, parts)
    assert [epoch for epoch, _ in parts.curve("knn")] == [1, 2, 3, 4]
    assert parts.facts["steps"] == 16


def test_a_resumed_run_logs_and_saves_as_often_as_it_was_begun(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any
) -> None:
    recipe, rhythm = tiny(data="array", epochs=4), Rhythm(log_steps=2, checkpoint_minutes=1e8, checkpoint_steps=5)
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "a", data=array_file, device="cpu", rhythm=rhythm, display=memory(6, stop))
    run = Run.open(tmp_path / "a")
    assert paced(run, Rhythm()) == rhythm
    assert paced(run, Rhythm(log_steps=3)) == replace(rhythm, log_steps=3)  # as asked, and the rest as begun
    pretrain(out=tmp_path / "a", resume=True, device="cpu", display=memory())
    assert [row["step"] for row in run.metrics() if "loss" in row] == [2, 4, 6, 8, 10, 12, 14, 16]
    for odd in ("often", [1], {"log_steps": 0, "checkpoint_minutes": float("nan"), "checkpoint_steps": -1, "x": 1}):
        run.note({"rhythm": odd})
        assert paced(run, Rhythm()) == Rhythm(log_steps=1 if isinstance(odd, dict) else 50)
    run.note({"rhythm": {"log_steps": 10**15, "checkpoint_steps": "7"}})
    assert paced(run, Rhythm()) == Rhythm(log_steps=50)


@pytest.mark.parametrize("at", [8, 16])
def test_a_run_stopped_at_the_end_of_an_epoch_equals_an_undisturbed_one(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any, at: int
) -> None:
    recipe, kind = tiny(data="array", epochs=4), {"data": array_file, "device": "cpu", "rhythm": RHYTHM}
    whole = pretrain(recipe, out=tmp_path / "a", display=memory(), **kind)
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "b", display=memory(at, lambda: stop(signal.SIGTERM)), **kind)
    assert_twins(whole, pretrain(recipe, out=tmp_path / "b", resume=True, display=memory(), **kind))


def test_a_run_cut_off_between_log_points_equals_an_undisturbed_one(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any
) -> None:
    """As by SIGKILL: nothing is saved on the way out, and rows lie behind the last checkpoint."""

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    recipe = tiny(data="array", epochs=4)
    rhythm = Rhythm(log_steps=3, checkpoint_minutes=1e9, checkpoint_epochs=100, checkpoint_steps=5)
    kind: dict[str, Any] = {"data": array_file, "device": "cpu", "rhythm": rhythm}
    whole = pretrain(recipe, out=tmp_path / "a", display=memory(), **kind)
    with pytest.raises(Killed):
        pretrain(recipe, out=tmp_path / "b", display=memory(9, die), **kind)
    run = Run.open(tmp_path / "b")
    assert run.checkpoint().facts["step"] == 5
    assert run.metrics()[-1]["step"] == 9
    assert_twins(whole, pretrain(recipe, out=tmp_path / "b", resume=True, display=memory(), **kind))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streamed_run_resumes_to_the_bit(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any, streamed: None, workers: int
) -> None:
    folder = make_folder(48, mixed=True, broken=(7,))
    recipe, kind = tiny(data="folder", epochs=3), {"data": folder, "device": "cpu"}  # 3 steps an epoch
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=1e9)
    shown = memory()
    whole = pretrain(recipe, out=tmp_path / "a", display=shown, workers=0, rhythm=rhythm, **kind)
    assert "streaming: 48 pictures of up to 20 x 18" in shown.said
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "b", display=memory(5, stop), workers=workers, rhythm=rhythm, **kind)
    parts = pretrain(out=tmp_path / "b", resume=True, display=memory(), workers=workers, device="cpu", rhythm=rhythm)
    assert_twins(whole, parts)
    assert "007.png" in (parts.path / "broken.txt").read_text()


def test_a_run_on_pictures_of_different_sizes_resumes_to_the_bit(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any
) -> None:
    recipe, kind = tiny(data="folder", epochs=3), {"data": make_folder(52, mixed=True, broken=(7,)), "device": "cpu"}
    rhythm, shown = Rhythm(log_steps=1, checkpoint_minutes=1e9), memory()
    whole = pretrain(recipe, out=tmp_path / "a", display=shown, rhythm=rhythm, **kind)
    assert "resident: 51 pictures of up to 20 x 18 are 47 kB on cpu; 1 broken files skipped" in shown.said
    with pytest.raises(Interrupted):  # 3 steps an epoch
        pretrain(recipe, out=tmp_path / "b", display=memory(5, stop), rhythm=rhythm, **kind)
    parts = pretrain(out=tmp_path / "b", resume=True, display=memory(), device="cpu", rhythm=rhythm)
    assert_twins(whole, parts)
    assert "007.png" in (parts.path / "broken.txt").read_text()
    assert len(parts.curve("knn")) == 3


def test_other_log_points_change_nothing_but_the_log(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    """Stopped between two log points and resumed with rarer, then with more frequent ones."""
    recipe, kind = tiny(data="array", epochs=4), {"data": array_file, "device": "cpu"}
    whole = pretrain(recipe, out=tmp_path / "a", display=memory(), **kind)
    run: Run | None = None
    for log_steps, at in ((3, 6), (50, 8), (2, None)):
        shown = memory(at, stop)
        rhythm = Rhythm(log_steps=log_steps, checkpoint_minutes=1e9, checkpoint_steps=1)
        try:
            run = pretrain(
                recipe, out=tmp_path / "b", resume=run is not None or at != 6, display=shown, rhythm=rhythm, **kind
            )
        except Interrupted:
            continue
    assert run is not None
    ours, theirs = run.checkpoint().part("method."), whole.checkpoint().part("method.")
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    losses = {row["step"]: row["loss"] for row in run.metrics() if "loss" in row}
    assert sorted(losses) == [3, 4, 6, 8, 10, 12, 14, 16]


def test_a_finished_run_resumes_to_itself(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    run = pretrain(tiny(data="array"), data=array_file, out=tmp_path / "a", device="cpu", display=memory())
    before = run.checkpoint(), run.metrics()
    run.note({"finished": "then"})
    litter = [run.path / ".run.json.99.tmp", run.checkpoints.folder / ".step-00000008.safetensors.99.tmp"]
    for path in litter:
        path.write_bytes(b"of a process that was killed")
    again = pretrain(out=tmp_path / "a", resume=True, device="cpu", display=memory())
    assert not any(path.exists() for path in litter)
    assert again.metrics() == before[1]
    assert again.facts["finished"] == "then"
    assert all(torch.equal(t, before[0].tensors[n]) for n, t in again.checkpoint().tensors.items())


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"lr": 0.5}, "its lr is"), ({"epochs": 9}, "its epochs is"), ({"queue_size": 64}, "its options is"),
     ({"views": ["weak", "weak"]}, "its views is"), ({"seed": 1}, "its seed is")],
)  # fmt: skip
def test_a_changed_recipe_is_not_resumed(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any, changes: dict[str, Any], field: str
) -> None:
    recipe = tiny(data="array", epochs=1)
    run = Run.create(tmp_path / "a", recipe, {"data": str(array_file)})
    with pytest.raises(ResslError, match=rf"is of another recipe: {field}") as caught:
        pretrain(recipe, out=run.path, resume=True, device="cpu", display=memory(), **changes)
    assert "\n" not in str(caught.value)
    (tmp_path / "changed.json").write_text(recipe.replace(**changes).to_json())
    with pytest.raises(ResslError, match=rf"is of another recipe: {field}"):
        pretrain(str(tmp_path / "changed.json"), out=run.path, resume=True, device="cpu", display=memory())


def test_a_run_is_not_resumed_with_other_pictures(
    tmp_path: Path, tiny: Tiny, make_folder: Callable[..., Path], memory: Any
) -> None:
    """More pictures are other epochs, another order and another schedule: no continuation."""
    folder, recipe = make_folder(48), tiny(data="folder", epochs=2)
    with pytest.raises(Interrupted):
        pretrain(recipe, data=folder, out=tmp_path / "run", device="cpu", display=memory(3, stop), rhythm=RHYTHM)
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    Image.new("RGB", (16, 16)).save(folder / "a" / "new.png")
    with pytest.raises(ResslError, match="began with 48 pictures, now there are 49"):
        pretrain(out=tmp_path / "run", resume=True, device="cpu", display=memory())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == rows
    (folder / "a" / "new.png").unlink()
    assert pretrain(out=tmp_path / "run", resume=True, device="cpu", display=memory()).facts["steps"] == 6


def test_an_existing_folder_is_refused_before_anything_is_read(tmp_path: Path, tiny: Tiny, memory: Any) -> None:
    Run.create(tmp_path / "a", tiny(), {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").touch()
    (tmp_path / "file").touch()
    for name, says in (("a", "pretrain --resume"), ("other", "choose another --out"), ("file", "choose another --out")):
        with pytest.raises(ResslError, match=says):
            pretrain(tiny(data="array"), data=tmp_path / "no.npz", out=tmp_path / name, device="cpu", display=memory())


def test_resume_wants_a_run(tmp_path: Path, memory: Any) -> None:
    with pytest.raises(ResslError, match="resume needs the run folder"):
        pretrain(resume=True, display=memory())
    with pytest.raises(ResslError, match="is not a run folder"):
        pretrain(resume=True, out=tmp_path, display=memory())


def test_a_damaged_checkpoint_is_passed_over_and_said(
    tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any
) -> None:
    recipe, kind = tiny(data="array", epochs=4), {"data": array_file, "device": "cpu"}
    rhythm = Rhythm(log_steps=3, checkpoint_minutes=1e9, checkpoint_steps=2)
    whole = pretrain(recipe, out=tmp_path / "a", display=memory(), rhythm=rhythm, **kind)
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "b", display=memory(9, stop), rhythm=rhythm, **kind)
    newest = Run.open(tmp_path / "b").checkpoints.paths()[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 16
    newest.write_bytes(data)
    shown = memory()
    parts = pretrain(out=tmp_path / "b", resume=True, device="cpu", display=shown, rhythm=rhythm)
    assert f"{newest.name} is damaged" in shown.said
    assert "resumed after step 8 of 16" in shown.said
    assert_twins(whole, parts)


def test_the_time_of_all_parts_is_counted(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    recipe, kind = tiny(data="array", epochs=2), {"data": array_file, "device": "cpu", "rhythm": RHYTHM}
    slow_stop = lambda: (time.sleep(0.6), stop())
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "b", display=memory(6, slow_stop), **kind)
    run = pretrain(out=tmp_path / "b", resume=True, device="cpu", display=memory())
    assert run.facts["seconds"] > 0.6


def test_a_saved_recipe_trains_the_same_run_again(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> None:
    kind: dict[str, Any] = {"data": array_file, "device": "cpu", "display": memory()}
    first = pretrain(tiny(data="array"), out=tmp_path / "a", **kind)
    again = pretrain(str(first.path / "recipe.json"), out=tmp_path / "b", **kind)
    other = pretrain(str(first.path / "recipe.json"), out=tmp_path / "c", seed=5, **kind)
    assert_twins(first, again)
    weights = [run.checkpoint().tensors["method.backbone.conv1.weight"] for run in (first, other)]
    assert not torch.equal(*weights)
