"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ressl.engine import compiling
from ressl.engine.compiling import keep_compiled, small_workspaces, wants_card

NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_kernels_are_kept_in_the_user_s_cache(tmp_path: Path) -> None:
    keep_compiled()
    assert [os.environ[name] for name in NAMES] == [str(tmp_path / "cache/ressl" / x) for x in ("inductor", "triton")]
    assert not (tmp_path / "cache").exists()  # nothing is written before there is something to keep


def test_a_place_of_the_user_s_choice_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(NAMES[0], "mine")
    keep_compiled()
    assert os.environ[NAMES[0]] == "mine"


def test_without_a_home_torch_keeps_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere")  # relative: not a place
    keep_compiled()
    assert not any(name in os.environ for name in NAMES)


def test_workspaces_are_small_unless_the_user_has_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    for before, after in ((None, ":4096:2:16:8"), (":4096:8", ":4096:8")):
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
        small_workspaces()
        assert os.environ[name] == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "10000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)
def test_threads_wait_briefly_unless_the_user_has_said_otherwise(before: dict[str, str], after: str | None) -> None:
    """And it is said before torch is there, which reads it only once."""
    look = (
        "import os, sys\nimport ressl.cli as cli\nold = cli._main\n"
        "cli._main = lambda words: print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules) or old(words)\n"
        "cli.main(['--version'])"
    )
    told = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | before
    said = subprocess.run([sys.executable, "-c", look], env=told, capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines()[0] == f"{after} False", said.stderr


@pytest.mark.parametrize(
    ("words", "several", "wakes"),
    [
        ("pretrain cifar10", False, True),
        ("evaluate runs/x --device cuda", False, True),
        ("embed runs/x photos -o f.npy --device=auto", False, True),
        ("pretrain cifar10 --device cpu", False, False),
        ("pretrain cifar10 --device=cuda:1", False, False),
        ("pretrain --help", False, False),
        ("methods", False, False),
        ("", False, False),
        ("pretrain cifar10", True, False),
    ],
)
def test_the_card_is_wanted_by_those_who_use_it(
    words: str, several: bool, wakes: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    if several:
        monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(compiling, "NVIDIA", tmp_path)  # there is one
    assert wants_card(words.split()) == wakes
    monkeypatch.setattr(compiling, "NVIDIA", tmp_path / "nothing")
    assert not wants_card(words.split())


def test_no_thread_imports_the_compiler_beside_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Thread:
        def __init__(self, **how: object) -> None:
            self.start = lambda: done.append("thread")

    monkeypatch.setattr(compiling.importlib, "import_module", done.append)
    monkeypatch.setattr(compiling.threading, "Thread", Thread)
    compiling.wake_compiler(torch.device("cpu"))
    assert done == ["torchvision.models.resnet", "thread"]
