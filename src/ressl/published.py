"""ResNet weights in other people's files: the authors' ImageNet checkpoints and their relatives.

The authors' files are a dict with ``model`` (a state dict), ``optimizer`` and ``epoch``. Its names begin with
``module.encoder_q.net.`` for the student and ``module.encoder_k.net.`` for the teacher, and go on as torchvision's;
heads and queue lie beside them. Others differ in the words before torchvision's names, so any prefix is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ressl.checkpoints import not_finite
from ressl.errors import ResslError, printable
from ressl.nn import BACKBONES, build_backbone
from ressl.nn.backbones import Stem
from ressl.transform import Transform

IMAGENET = Transform(224, 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_NESTED = ("model", "state_dict", "model_state_dict", "net", "backbone")
_TEACHER = re.compile(r"(encoder_k|teacher|momentum|target|ema)(\b|_|\.)")  # the moving average beside the student
_MARK = ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer4.0.conv1.weight")


class Named(NamedTuple):
    """What weights say about the network they belong to."""

    backbone: str
    stem_side: int  # of the first convolution, in pixels
    width: int


def find_weights(content: Any) -> dict[str, Tensor]:
    """The student ResNet's weights with torchvision's names, out of a state dict or a dict that holds one."""
    state = _state_dict(content)
    tail = _MARK[-1]
    prefixes = [name.removesuffix(tail) for name in state if name.endswith(tail)]
    prefixes = [p for p in prefixes if all(p + mark in state for mark in _MARK)]
    if not prefixes:
        raise ResslError("it holds no ResNet (no conv1, bn1, layer1 to layer4 below any common name)")
    students = [p for p in prefixes if not _TEACHER.search(p)] or prefixes
    if len(students) > 1:
        names = ", ".join(f"'{printable(p)}'" for p in students[:4])
        raise ResslError(f"it holds {len(students)} ResNets ({names}) and nothing tells which one is meant")
    prefix = students[0]
    found = {name[len(prefix) :]: tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {name: t.float() if t.is_floating_point() else t for name, t in found.items() if _is_trunk(name)}


def _state_dict(content: Any) -> dict[str, Tensor]:
    for _ in range(4):  # a dict in a dict in a dict
        if not isinstance(content, Mapping):
            break
        tensors = {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
        if any(name.endswith(_MARK[0]) for name in tensors):
            return tensors
        inner = next((content[key] for key in _NESTED if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    raise ResslError("it holds no state dict (expected tensors by name, perhaps below 'model' or 'state_dict')")


def _is_trunk(name: str) -> bool:
    return re.match(r"(conv1|bn1|layer[1-4]\.\d+)\.", name) is not None


def name_network(weights: Mapping[str, Tensor]) -> Named:
    """Which of our ResNets these weights fill."""
    blocks = [len({name.split(".")[1] for name in weights if name.startswith(f"layer{i}.")}) for i in (1, 2, 3, 4)]
    block = "Bottleneck" if "layer1.0.conv3.weight" in weights else "BasicBlock"
    name = next((key for key, value in BACKBONES.items() if value == (block, blocks)), None)
    conv = weights["conv1.weight"]
    if name is None or conv.ndim != 4 or conv.shape[1] != 3:
        known = ", ".join(BACKBONES)
        raise ResslError(f"its ResNet has {blocks} blocks of kind {block}; known are {known} for RGB pictures")
    return Named(name, conv.shape[-1], conv.shape[0])


def filled(name: str, stem: Stem, width: int, weights: Mapping[str, Tensor]) -> nn.Module:
    """The backbone with these weights, for use. All must fit, save the norms' counters, which old files lack."""
    whole = name.startswith("timm/")  # some models of timm hold more than their state dict shows
    with torch.random.fork_rng(devices=[]), torch.device("cpu" if whole else "meta"):
        backbone = build_backbone(name, stem, width)
    counters = [key for key in backbone.state_dict() if key.endswith("num_batches_tracked")]
    weights = {key: torch.tensor(0) for key in counters} | dict(weights)
    try:
        result = backbone.load_state_dict(weights, strict=False, assign=not whole)
    except RuntimeError as error:
        first = printable(str(error).strip().split("\n")[-1].strip())
        raise ResslError(f"its weights do not fit the network: {first[:200]}") from None
    if result.missing_keys or result.unexpected_keys:
        first = (result.missing_keys or result.unexpected_keys)[0]
        how = "lack" if result.missing_keys else "have an unknown"
        raise ResslError(f"its weights do not fit the network: they {how} {printable(first)}")
    if spoilt := not_finite(weights):
        raise ResslError(f"its weights are not finite ({printable(spoilt)}), so no feature of it would be a number")
    return backbone.eval()


def open_published(content: Any) -> tuple[nn.Module, Transform]:
    """The backbone of a published checkpoint (ImageNet's 7 x 7 stem) and ImageNet's usual transform."""
    weights = find_weights(content)
    named = name_network(weights)
    if named.stem_side != 7:
        raise ResslError(
            f"its first convolution is {named.stem_side} x {named.stem_side}, and nothing in it tells the rest of the "
            f"stem, the input size, mean and std; build it yourself: ressl.nn.build_backbone('{named.backbone}', "
            "stem='small' or 'medium').load_state_dict(...)"
        )
    return filled(named.backbone, "imagenet", named.width, weights), IMAGENET
