"""Checkpoints of the authors' layout and its relatives: the student is found, code is not run, the rest is refused."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from ressl.checkpoints import Checkpoint, save
from ressl.errors import ResslError
from ressl.loading import load
from ressl.nn import build_backbone
from ressl.nn.resnet import SlimResNet
from ressl.published import IMAGENET

State = dict[str, Tensor]


def slim(seed: int, width: int = 4, stem: str = "imagenet") -> nn.Module:
    torch.manual_seed(seed)
    model = SlimResNet("Bottleneck", [3, 4, 6, 3], width)
    model.set_stem(stem)  # type: ignore[arg-type]
    return model.eval()


def below(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.fixture(scope="module")
def student() -> nn.Module:
    return slim(0)


@pytest.fixture(scope="module")
def teacher() -> State:
    return slim(1).state_dict()


def authors(student: State, teacher: State) -> dict[str, Any]:
    """As the authors' training script saves: DDP's prefix, both encoders with heads, queue, optimiser, epoch."""
    head = {"head.linear1.weight": torch.zeros(8, 16), "head.linear2.bias": torch.zeros(4)}
    state = {"module.queue": torch.zeros(4, 32), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    for name, net in (("encoder_q", student), ("encoder_k", teacher)):
        state |= below(f"module.{name}.net.", net) | below(f"module.{name}.", head)
    optimiser = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.05, "params": [0]}]}
    return {"model": state, "optimizer": optimiser, "epoch": 200}


LAYOUTS: dict[str, Callable[[State, State], Any]] = {
    "authors": authors,
    "without DDP": lambda s, t: {"state_dict": below("encoder_q.net.", s) | below("encoder_k.net.", t)},
    "momentum names": lambda s, t: {"state_dict": below("backbone.", s) | below("momentum_backbone.", t)},
    "plain state dict": lambda s, t: dict(s),
    "with a classifier": lambda s, t: s | {"fc.weight": torch.zeros(10, 128), "fc.bias": torch.zeros(10)},
    "only a teacher": lambda s, t: {"model": below("module.encoder_k.net.", s)},
    "old, without counters": lambda s, t: {k: v for k, v in s.items() if not k.endswith("num_batches_tracked")},
    "double precision": lambda s, t: {k: v.to(torch.float64) if v.is_floating_point() else v for k, v in s.items()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_student_is_found_in_every_layout(tmp_path: Path, student: nn.Module, teacher: State, layout: str) -> None:
    path = tmp_path / "ressl-200.pth"
    torch.save(LAYOUTS[layout](student.state_dict(), teacher), path)
    model, transform = load(path)
    assert isinstance(model, ResNet)
    assert transform == IMAGENET
    assert not model.training
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), student(x))


def test_weights_without_a_card_may_be_safetensors(tmp_path: Path, student: nn.Module) -> None:
    safetensors.torch.save_file(student.state_dict(), tmp_path / "x.safetensors")
    model, _ = load(tmp_path / "x.safetensors")
    assert torch.equal(model.state_dict()["conv1.weight"], student.state_dict()["conv1.weight"])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("owned",)


def _hostile(path: Path, student: State) -> None:
    torch.save({"model": student, "more": Evil()}, path)


def _pickle(path: Path, student: State) -> None:
    path.write_bytes(pickle.dumps({"model": Evil()}))


def _cut(path: Path, student: State) -> None:
    torch.save(student, path)
    path.write_bytes(path.read_bytes()[:-2000])


def _without(name: str) -> Callable[[Path, State], None]:
    return lambda path, state: torch.save({k: v for k, v in state.items() if k != name}, path)


WRONG: dict[str, tuple[Callable[[Path, State], Any], str]] = {
    "code": (_hostile, "whatever would run code is refused"),
    "pickle": (_pickle, "whatever would run code is refused"),
    "cut": (_cut, "neither safetensors nor a PyTorch file"),
    "empty": (lambda path, s: path.touch(), "neither safetensors nor a PyTorch file"),
    "text": (lambda path, s: path.write_text("hello"), "neither safetensors nor a PyTorch file"),
    "a tensor": (lambda path, s: torch.save(torch.zeros(3), path), "it holds no state dict"),
    "other network": (lambda path, s: torch.save({"a.conv1.weight": torch.zeros(3)}, path), "it holds no ResNet"),
    "missing": (_without("layer2.1.bn1.weight"), r"they lack layer2\.1\.bn1\.weight"),
    "two": (lambda path, s: torch.save(below("a.", s) | below("b.", s), path), r"holds 2 ResNets \('a\.', 'b\.'\)"),
    "odd shape": (lambda path, s: torch.save(s | {"bn1.weight": torch.zeros(9)}, path), r"do not fit.*bn1\.weight"),
    "depth": (
        lambda path, s: torch.save({k: v for k, v in s.items() if not k.startswith("layer3.5")}, path),
        r"\[3, 4, 5, 3\] blocks of kind Bottleneck; known are resnet10",
    ),
    "unknown stem": (
        lambda path, s: torch.save(slim(0, stem="small").state_dict(), path),
        r"first convolution is 3 x 3, and nothing in it tells .* build it yourself: ressl\.nn\.build_backbone",
    ),
    "card": (
        lambda path, s: (torch.save(s, path), path.with_suffix(".card.json").write_text(json.dumps({"schema": 99}))),
        "its card is of another version",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_anything_else_is_refused_in_one_sentence(
    tmp_path: Path, student: nn.Module, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, (write, says) = tmp_path / "x.pth", WRONG[kind]
    write(path, student.state_dict())
    with pytest.raises(ResslError, match=says) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path} cannot be loaded: ")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "owned").exists()


def test_other_files_of_ours_and_of_others_are_told_apart(tmp_path: Path) -> None:
    save(tmp_path / "step.safetensors", Checkpoint({"a": torch.zeros(1)}, {"step": 1}))
    with pytest.raises(ResslError, match="it is a checkpoint inside a run; give the run folder"):
        load(tmp_path / "step.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      "[:12])
    with pytest.raises(ResslError, match="it is no whole safetensors file"):
        load(tmp_path / "x.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ResslError, match=r"its config\.json is not of ressl"):
        load(tmp_path)


GOOD = {"schema": 1, "backbone": "resnet10", "stem": "small", "width": 4, "features_dim": 32, "image_size": 16,
        "resize": 16, "mean": [0.5] * 3, "std": [0.2] * 3}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "of another version"),
        ({"image_size": "many"}, "image_size, resize, mean or std"),
        ({"image_size": 32}, "image_size, resize, mean or std"),
        ({"mean": [1, 2]}, "image_size, resize, mean or std"),
        ({"std": [0, 1, 1]}, "image_size, resize, mean or std"),
        ({"std": [float("nan")] * 3}, "image_size, resize, mean or std"),
        ({"backbone": ["x"]}, "no sound backbone, width and features_dim"),
        ({"width": 10**9}, "no sound backbone, width and features_dim"),
        ({"features_dim": None}, "no sound backbone, width and features_dim"),
        ({"backbone": "resnet11"}, "did you mean 'resnet1"),
        ({"backbone": "timm/hf-hub:someone/something"}, "unknown timm model"),
        ({"stem": "smal"}, "did you mean 'small'"),
        ({"width": 8}, "do not fit the network"),
    ],
    ids=str,
)
def test_a_card_that_lies_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    weights = build_backbone("resnet10", "small", 4).state_dict()
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(weights, path, {"ressl": json.dumps(GOOD)})
    assert load(path)[0](torch.zeros(1, 3, 16, 16)).shape == (1, 32)
    safetensors.torch.save_file(weights, path, {"ressl": json.dumps(GOOD | change)})
    with pytest.raises(ResslError, match=says) as caught:
        load(path)
    assert "\n" not in str(caught.value)
