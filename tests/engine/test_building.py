"""Kernels built by other processes, for a card that need not be there."""

import subprocess
from pathlib import Path

import pytest
import torch

from ressl.engine.ahead import launches
from ressl.engine.building import build
from ressl.nn import build_backbone

pytest.importorskip("triton")
H200 = ("cuda", 90, 32)


def test_what_a_network_will_launch_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = launches(build_backbone("resnet10", "small", width=8, bn_groups=2), (8, 3, 32, 32), torch.bfloat16)
    few = [launch for launch in found if launch.kernel.__name__ == "_apply"][:2]
    build(few, H200)
    assert len(list(tmp_path.glob("*/*.cubin"))) == len(few) == 2
    assert len(list(tmp_path.glob("built-*"))) == 1

    def start(*args: object, **how: object) -> None:
        raise AssertionError("nothing is left to build")

    monkeypatch.setattr(subprocess, "Popen", start)
    build(few, H200)


def test_what_cannot_be_built_is_left_to_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = launches(build_backbone("resnet10", "small", width=8, bn_groups=2), (8, 3, 32, 32), torch.bfloat16)
    wrong = found[0]._replace(constants=found[0].constants | {"ROWS": 3})  # no power of two
    build([wrong], H200)
    assert not list(tmp_path.glob("built-*"))
