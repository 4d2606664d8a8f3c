"""`--exact` reaches the engine, and a run goes on as exactly and as precisely as it was begun."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ressl
import ressl.runs
import ressl.training
from ressl.cli import main
from ressl.engine.accelerate import accelerate
from ressl.engine.loop import Rhythm
from ressl.errors import ResslError

SMALL = {
    "width": 2,
    "batch_size": 512,
    "image_size": 16,
    "bn_groups": 2,
    "hidden_dim": 16,
    "queue_size": 512,
    "knn_every": 0,
}


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "killed before its first checkpoint"])
def test_a_resumed_run_goes_on_as_it_was_begun(saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, precisions = [], []

    def watched(step, engine, say, exact: bool, watcher) -> None:
        asked.append(exact)
        precisions.append(step.precision)
        accelerate(step, engine, say, exact=exact, watcher=watcher)
        if len(asked) == 1:
            finish = step.body

            def stops(batch) -> None:
                finish(batch)
                if step.done == 2:
                    raise ResslError("enough")

            step.body = stops

    monkeypatch.setattr(ressl.training, "accelerate", watched)
    out = tmp_path / "run"
    with pytest.raises(ResslError, match="enough"):
        ressl.pretrain(
            "demo",
            out=out,
            device="cpu",
            exact=True,
            precision="bf16",
            epochs=1,
            rhythm=Rhythm(checkpoint_steps=1, log_steps=1),
            **SMALL,
        )
    if not saved:
        shutil.rmtree(out / "checkpoints")
    assert main(["pretrain", "--resume", "--out", str(out), "--device", "cpu", "--quiet"]) == 0
    assert asked == [True, True]
    assert precisions == [torch.bfloat16, torch.bfloat16]  # which this device would not choose
    assert ressl.runs.Run.open(out).checkpoint().facts["exact"] is True


def test_the_command_line_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("ressl.commands.pretrain.pretrain_run", lambda *a, **how: asked.append(how["exact"]) or 1 / 0)
    for words in ([], ["--exact"]):
        with pytest.raises(ZeroDivisionError):
            main(["pretrain", "demo", "--out", str(tmp_path / "run"), *words])
    assert asked == [False, True]


def test_a_run_is_exact_only_if_it_always_was() -> None:
    settings, step = ressl.training.Settings(exact=True), SimpleNamespace(precision=torch.float32, engine="graph")
    noted = lambda before: ressl.training._as_it_runs(settings, step, before)["exact"]
    assert noted({}) is True
    assert noted({"exact": True, "step": 3}) is True
    assert noted({"exact": False, "step": 3}) is False
    assert noted({"step": 3}) is False  # an older checkpoint, which does not say
