"""Kernels built by other processes, for a card that need not be there."""

import subprocess
from pathlib import Path

import pytest
import torch

from ressl.engine import building
from ressl.engine.ahead import sketched
from ressl.engine.building import build, dismiss, hire
from ressl.engine.crew import start
from ressl.engine.launching import noted
from ressl.engine.optimisers import build_sgd
from ressl.nn import EMATeacher, build_backbone

pytest.importorskip("triton")
H200 = ("cuda", 90, 32)


def test_what_a_network_will_launch_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found, _ = sketched(build_backbone("resnet10", "small", width=8, bn_groups=2), (8, 3, 32, 32), torch.bfloat16)
    few = [launch for launch in found if launch.kernel.__name__ == "_apply"][:2]
    build(few, H200)
    assert len(list(tmp_path.glob("*/*.cubin"))) == len(few) == 2
    assert len(list(tmp_path.glob("built-*"))) == 1

    def start(*args: object, **how: object) -> None:
        raise AssertionError("nothing is left to build")

    monkeypatch.setattr(subprocess, "Popen", start)
    build(few, H200)


def test_hired_builders_do_the_work_or_go_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found, _ = sketched(build_backbone("resnet10", "small", width=8, bn_groups=2), (8, 3, 32, 32), torch.bfloat16)
    few = [launch for launch in found if launch.kernel.__name__ == "_apply"][:1]
    builders = start([building.MODULE] * 2)
    hire(builders)
    monkeypatch.setattr(building, "start", lambda modules: pytest.fail("there are builders already"))
    build(few, H200)
    assert [builder.returncode for builder in builders] == [0, 0]
    assert len(list(tmp_path.glob("*/*.cubin"))) == 1
    assert not building._hired
    builders = start([building.MODULE])
    hire(builders)
    dismiss()
    assert [builder.wait(60) for builder in builders] == [0]
    assert not building._hired


def test_what_cannot_be_built_is_left_to_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found, _ = sketched(build_backbone("resnet10", "small", width=8, bn_groups=2), (8, 3, 32, 32), torch.bfloat16)
    wrong = found[0]._replace(constants=found[0].constants | {"ROWS": 3})  # no power of two
    build([wrong], H200)
    assert not list(tmp_path.glob("built-*"))


def test_what_an_update_launches_is_built_ahead() -> None:
    from ressl.engine.updating import Update, kernels_of

    net, own = build_backbone("resnet10", "small", width=8), torch.nn.Linear(4, 4)
    weights = torch.nn.ModuleList([net, own])
    optimiser = build_sgd(weights, momentum=0.9, weight_decay=5e-4, decay_norm_and_bias=True, nesterov=True)
    teacher = EMATeacher(net, 0.9)
    optimiser.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    for p in weights.parameters():
        p.grad = torch.zeros_like(p)
    low = {p: p.grad.bfloat16() for p in weights.parameters() if p.ndim == 4}
    update = Update(optimiser, [teacher], lambda p: low.get(p, p.grad), lambda: None)
    with noted() as found:
        for _ in range(2):  # the first without the teacher, whom it has not seen yet
            update.norm()
            update.step()
            teacher.update(net)
    seen = lambda launches: {
        (x.kernel, *(arg.dtype if isinstance(arg, torch.Tensor) else arg for arg in x.args), *x.constants.items())
        for x in launches
    }
    assert seen(found) == seen(kernels_of(optimiser))
    assert len(kernels_of(optimiser)) == 6
