"""The page about writing a method: its example is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ressl
from ressl.methods import METHODS
from ressl.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "METHODS.md"


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_your_own_method_in_forty_lines_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdout", open("said.txt", "w"))  # noqa: SIM115
    try:
        exec(compile(example(), str(PAGE), "exec"), {"__name__": "example"})
        run = Run.open("runs/barlow")
        assert len(run.curve("correlation")) > 0
        first, last = run.curve("loss")[0][1], run.curve("loss")[-1][1]
        assert last < first
        assert run.recipe.options["hidden_dim"] == 256
        model, _ = ressl.load("runs/barlow")
        assert model.features_dim == 64
    finally:
        METHODS.pop("barlow-twins", None)


def test_it_is_forty_lines() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 40


def test_the_page_names_every_special_need() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, method in METHODS.items():
        if method.wants:
            assert f"`{name}`" in text, name
