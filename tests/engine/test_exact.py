"""`--exact` reaches the engine, and a run goes on as exactly and as precisely as it was begun."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ressl
import ressl.training
from ressl.cli import main
from ressl.engine.accelerate import Ideas, accelerate
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


def test_a_resumed_run_goes_on_as_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, precisions = [], []

    def watched(step, engine, say, ideas: Ideas) -> None:
        tried.append(ideas.tried_convolutions)
        precisions.append(step.precision)
        accelerate(step, engine, say, ideas)
        if len(tried) == 1:
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
    assert main(["pretrain", "--resume", "--out", str(out), "--device", "cpu", "--quiet"]) == 0
    assert tried == [False, False]
    assert precisions == [torch.bfloat16, torch.bfloat16]  # which this device would not choose


def test_the_command_line_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("ressl.commands.pretrain.pretrain_run", lambda *a, **how: asked.append(how["exact"]) or 1 / 0)
    for words in ([], ["--exact"]):
        with pytest.raises(ZeroDivisionError):
            main(["pretrain", "demo", "--out", str(tmp_path / "run"), *words])
    assert asked == [False, True]
