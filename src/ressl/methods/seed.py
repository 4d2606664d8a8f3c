"""SEED: Self-supervised Distillation for Visual Representation.

Fang, Wang, Wang, Zhang, Yang and Liu, ICLR 2021, arXiv:2101.04731.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.checkpoints import CheckpointFolder
from ressl.errors import ResslError
from ressl.files import read_json
from ressl.methods.base import Carry, Method, Output
from ressl.nn import (
    MemoryQueue,
    ProjectionHead,
    all_rows,
    build_backbone,
    groups_of,
    head_of,
    head_words,
    l2_normalize,
)
from ressl.nn.backbones import Stem


class SEED(Method):
    """A small student learns the similarities that a large frozen teacher sees between a picture and a queue.

    One view for both. ``teacher`` is the run folder of the teacher: any method but CPC v2 and supervised learning,
    which have no projection head. What that run trained, ``teacher_backbone`` and the options below it, a new run reads
    there and keeps, so that it needs the folder no more.
    """

    title: ClassVar[str] = "SEED"
    paper: ClassVar[str] = "arXiv:2101.04731"
    fewest_views: ClassVar[int] = 1
    most_views: ClassVar[int | None] = 1

    def __init__(
        self,
        backbone: nn.Module,
        *,
        teacher: str = "",
        teacher_backbone: str = "resnet50",
        teacher_stem: Stem = "small",
        teacher_width: int = 64,
        teacher_hidden_dim: int = 2048,
        teacher_head: str = "",
        output_dim: int = 128,
        hidden_dim: int = 2048,
        queue_size: int = 4096,
        student_temperature: float = 0.2,
        teacher_temperature: float = 0.01,
        head_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        groups = groups_of(backbone)
        self.head = ProjectionHead(width, hidden_dim, output_dim, batch_norm=head_batch_norm, groups=groups)
        large = build_backbone(teacher_backbone, teacher_stem, teacher_width)
        features: int = large.features_dim  # type: ignore[assignment]
        small: nn.Sequential = ProjectionHead(features, teacher_hidden_dim, output_dim, batch_norm=head_batch_norm)
        small = head_of(teacher_head, features) if teacher_head else small
        self.frozen = nn.Sequential(large, small).requires_grad_(False)
        self.queue = MemoryQueue(queue_size, output_dim)
        self.tau_s, self.tau_t, self.teacher = student_temperature, teacher_temperature, teacher
        self.loaded = load_teacher(self.frozen, teacher)

    @classmethod
    def completed(cls, options: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
        run = str(options.get("teacher", ""))
        found = read_teacher(run)
        for name in (name for name in found if name in given):
            if found[name] != options[name]:
                raise ResslError(
                    f"the teacher in {run} has {name} {found[name]!r}, not {options[name]!r}; leave that option out"
                )
        return {**options, **found}

    @classmethod
    def inherited(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """A frozen network sees pictures as it did when it learned, and the student sees the same."""
        told = _recipe(str(options.get("teacher", "")))
        number = lambda x: isinstance(x, (int, float))
        colours = lambda value: isinstance(value, list) and len(value) == 3 and all(map(number, value))
        return {name: tuple(told[name]) for name in ("mean", "std") if colours(told.get(name))}

    def train(self, mode: bool = True) -> SEED:
        super().train(mode)
        self.frozen.eval()  # frozen, running statistics included
        return self

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        z_s = l2_normalize(self.head(self.backbone(views[0])))  # B x D
        z_t = self.target(views[0])
        log_p_t = self.relation(z_t, z_t, self.tau_t)
        log_p_s = self.relation(z_s, z_t, self.tau_s)
        loss = losses.cross_entropy(log_p_t, log_p_s).mean()
        with torch.no_grad():
            logs = {
                "teacher_entropy": losses.entropy(log_p_t).mean(),
                "agreement": (log_p_s.argmax(1) == 0).float().mean(),
                "spread": losses.spread(z_s),
            }
        return Output(loss, carry=z_t, logs=logs)

    @torch.no_grad()
    def target(self, view: Tensor) -> Tensor:
        return l2_normalize(self.frozen(view))

    def relation(self, z: Tensor, z_t: Tensor, temperature: float) -> Tensor:
        """The log-distribution of z over the teacher's own embedding of the picture (first) and the queue."""
        positive = (z * z_t).sum(1, keepdim=True)
        return (torch.cat((positive, losses.similarity(z, self.queue.keys)), 1) / temperature).log_softmax(1)

    def check_start(self, sizes: Sequence[int]) -> None:
        if not self.loaded:
            where = f"there is no checkpoint in {self.teacher}" if self.teacher else "it was not named"
            raise ResslError(f"SEED distils a trained teacher, and {where}; give its run folder: --teacher RUN")

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, Tensor)
        self.queue.enqueue(all_rows(carry))


def read_teacher(run: str) -> dict[str, Any]:
    """The options that describe the network of a trained run; none where there is no such run."""
    found = _network(run)
    if not found or not (recipe := _recipe(run)):
        return {}
    head = {name[2:]: list(tensor.shape) for name, tensor in found.items() if name.startswith("1.")}
    if not head or not all(name.partition(".")[0].isdecimal() for name in head):
        raise ResslError(
            f"SEED learns from a projection head of linear layers, and the {recipe.get('method')} run {run} has none; "
            "take a run of another method as --teacher"
        )
    words = head_words(head)
    widths = [int(word.split()[1]) for word in words.split(", ") if word.startswith("linear")]
    return {
        **{f"teacher_{key}": recipe[key] for key in ("backbone", "stem", "width") if key in recipe},
        **({"teacher_hidden_dim": widths[0]} if len(widths) > 1 else {}),
        **{"teacher_head": words, "output_dim": widths[-1]},
    }


def _recipe(run: str) -> dict[str, Any]:
    try:
        recipe = read_json(Path(run, "recipe.json")) if run else None
    except (OSError, ValueError):
        return {}
    return recipe if isinstance(recipe, dict) else {}


def load_teacher(network: nn.Sequential, run: str) -> bool:
    """Fill backbone and head from the newest good checkpoint of a run folder; False where there is none.

    A run that is only evaluated or continued has the teacher in its own checkpoint and needs no other.
    """
    if next(network.parameters()).is_meta or not (found := _network(run)):  # what is only measured takes nothing in
        return False
    try:
        network.load_state_dict(found, assign=True)  # also where the network is but a sketch without memory
    except RuntimeError as error:
        lines = str(error).split("\n")
        first = lines[min(1, len(lines) - 1)].strip().split('", "')[0].rstrip(".")  # of perhaps a hundred names
        raise ResslError(
            f"the teacher in {run} is another network than teacher_backbone and the options beside it say ({first})"
        ) from error
    return True


def _network(run: str) -> dict[str, Tensor]:
    """Backbone and head of a run, by their names in ``frozen``; nothing where there is no checkpoint."""
    folder = CheckpointFolder(Path(run, "checkpoints"))
    if not run or not folder.paths():
        return {}
    tensors = folder.load_latest().tensors
    for text in folder.damaged:
        warnings.warn(f"{text}; SEED takes its teacher from the one before", stacklevel=2)
    return {_named(name): tensor for name, tensor in tensors.items() if _named(name)}


def _named(name: str) -> str:
    """The name of a run's tensor in the network of backbone and head; none for the rest."""
    if name.startswith("method.backbone."):
        return name.replace("method.backbone.", "0.", 1)
    if name in ("method.head.weight", "method.head.bias"):  # a head of one layer
        return name.replace("method.head.", "1.0.", 1)
    return name.replace("method.head.", "1.", 1) if name.startswith("method.head.") else ""
