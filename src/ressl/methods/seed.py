"""SEED: Self-supervised Distillation for Visual Representation.

Fang, Wang, Wang, Zhang, Yang and Liu, ICLR 2021, arXiv:2101.04731.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import safetensors
import torch
from torch import Tensor, nn

from ressl import losses
from ressl.errors import ResslError
from ressl.methods.base import Carry, Method, Output
from ressl.nn import MemoryQueue, ProjectionHead, all_rows, build_backbone, groups_of, l2_normalize
from ressl.nn.backbones import Stem


class SEED(Method):
    """A small student learns the similarities that a large frozen teacher sees between a picture and a queue.

    One view for both. ``teacher`` is the run folder of the teacher (any method with a projection head, such as
    MoCo v2); ``teacher_backbone`` and the options below it say what that run trained.
    """

    title: ClassVar[str] = "SEED"
    paper: ClassVar[str] = "arXiv:2101.04731"
    fewest_views: ClassVar[int] = 1

    def __init__(
        self,
        backbone: nn.Module,
        *,
        teacher: str = "",
        teacher_backbone: str = "resnet50",
        teacher_stem: Stem = "small",
        teacher_width: int = 64,
        teacher_hidden_dim: int = 2048,
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
        small = ProjectionHead(features, teacher_hidden_dim, output_dim, batch_norm=head_batch_norm)
        self.frozen = nn.Sequential(large, small).requires_grad_(False)
        self.queue = MemoryQueue(queue_size, output_dim)
        self.tau_s, self.tau_t, self.teacher = student_temperature, teacher_temperature, teacher
        self.loaded = load_teacher(self.frozen, teacher)

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

    @torch.no_grad()
    def begin_epoch(self, epoch: int) -> None:
        if epoch == 0 and not self.loaded:  # later its weights are in the checkpoint
            where = f"there is no checkpoint in {self.teacher}" if self.teacher else "it was not named"
            raise ResslError(f"SEED distils a trained teacher, and {where}; give its run folder: --teacher RUN")

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, Tensor)
        self.queue.enqueue(all_rows(carry))


def load_teacher(network: nn.Sequential, run: str) -> bool:
    """Fill backbone and head from the newest checkpoint of a run folder; False where there is none.

    A run that is only evaluated or continued has the teacher in its own checkpoint and needs no other.
    """
    paths = sorted(Path(run, "checkpoints").glob("step-*.safetensors")) if run else []
    if not paths or next(network.parameters()).is_meta:  # a network that is only measured takes nothing in
        return False
    with safetensors.safe_open(paths[-1], framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(("method.backbone.", "method.head."))]  # noqa: SIM118
        found = {
            name.replace("method.backbone.", "0.", 1).replace("method.head.", "1.", 1): file.get_tensor(name)
            for name in names
        }
    try:
        network.load_state_dict(found, assign=True)  # also where the network is but a sketch without memory
    except RuntimeError as error:
        first = str(error).split("\n")[1].strip() if "\n" in str(error) else str(error)
        raise ResslError(
            f"the teacher in {run} is another network than teacher_backbone and the options beside it say: {first}"
        ) from error
    return True
