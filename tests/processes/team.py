"""What two processes do together, run once for all the tests of test_together.py: ``python team.py OUT``.

Each check writes down what this process found; the tests compare it with what one process alone computes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ressl.__main__ import leave
from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.engine.loop import Rhythm
from ressl.engine.processes import ALONE, Team, averager, groups_here, joined, parallel, shared
from ressl.engine.step import TrainStep
from ressl.methods.base import Method, Output
from ressl.nn import BatchShuffle, all_rows, build_backbone, my_rows
from ressl.nn.batchnorm import WholeBatchNorm1d, share_batch_norm
from ressl.recipes import Recipe, method_options
from ressl.runs import build_method
from ressl.training import Settings, build_step

STEPS = 20
TWINS = ["ressl", "moco-v2", "simclr", "byol"]
PICTURES = 72
# Those whose recipes have statistics over the whole batch, with the views and the optimiser of these.
WHOLE = ["simclr", "byol", "simsiam", "swav", "supervised", "instdisc", "localagg"]
CROPS = ["weak", "strong,size=16", "strong,size=12,crop=0.1:0.7", "strong,size=12", "strong,size=8"]
SMALL = {
    "backbone": "resnet10", "stem": "medium", "width": 4, "image_size": 16, "batch_size": 16, "bn_groups": 2,
    "epochs": 6, "warmup_epochs": 1.0,
}  # fmt: skip
OPTIONS = {
    "hidden_dim": 16, "output_dim": 8, "queue_size": 32, "queue_from": 0.3, "predictor_dim": 4, "prototypes": 6,
    "num_classes": 3, "bank_size": PICTURES, "negatives": 32, "background": 24, "clusters": 5, "cluster_from": 0.3,
}  # fmt: skip


ACTS = "timm/test_efficientnet"  # each of its norms has an activation of its own
TIMM = importlib.util.find_spec("timm") is not None


def recipe_of(method: str, **changes: Any) -> Recipe:
    known = method_options(method)
    options = {key: value for key, value in OPTIONS.items() if key in known}
    return Recipe(name=method).replace(method=method, **(SMALL | options | changes))


def pictures(n: int = PICTURES) -> ArraySource:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=draw)
    return ArraySource("a", images, torch.arange(n) % 3, ["a", "b", "c"])


def step_of(recipe: Recipe, team: Team = ALONE, method: Method | None = None) -> TrainStep:
    torch.use_deterministic_algorithms(True)
    method = method or build_method(recipe, groups_here(recipe.bn_groups, team.world))
    loader = ResidentLoader(pictures(), recipe.batch_size, "cpu", recipe.seed, team.rank, team.world)
    place = torch.device("cpu")
    step = build_step(recipe, method, loader, Settings(device="cpu", rhythm=Rhythm(log_steps=STEPS)), place)
    if team.world > 1:
        share_batch_norm(method, whole=recipe.bn_groups == 1)
        step.call, step.average = parallel(method, place), averager(method, team.world)
    return step


def train(
    recipe: Recipe, team: Team = ALONE, precision: torch.dtype = torch.float32, steps: int = STEPS
) -> dict[str, Any]:
    """Losses of all steps and every tensor of the method after them."""
    method = build_method(recipe, groups_here(recipe.bn_groups, team.world)).to(precision)
    step = step_of(recipe, team, method)
    step.precision = precision
    while step.done < steps:
        step.begin_epoch(step.done // step.loader.steps_per_epoch)
        for _ in range(min(step.loader.steps_per_epoch, steps - step.done)):
            step.advance()
    losses = [row["loss"] for row in step.drain()]
    return {"losses": torch.tensor(losses, dtype=torch.float64), "state": step.method.state_dict()}


class Fickle(Method):
    """Its loss is infinite on rank 1 in step 2, with a gradient that is finite everywhere."""

    def __init__(self, team: Team) -> None:
        super().__init__()
        self.backbone, self.team = nn.Linear(3, 1), team
        self.register_buffer("count", torch.zeros(()))

    def forward(self, views: Any, **wanted: Tensor) -> Output:
        loss = self.backbone(views[0].mean(dim=(2, 3))).mean()
        if self.team.rank == 1 and self.get_buffer("count") == 2:
            loss = loss + torch.tensor(float("inf"))
        return Output(loss, views[0].mean(dim=(1, 2, 3)), {})

    @torch.no_grad()
    def after_step(self, carry: Any) -> None:
        self.get_buffer("count").add_(1)


def bad_step(team: Team) -> dict[str, Any]:
    method = Fickle(team)
    step = step_of(recipe_of("ressl"), team, method)
    step.begin_epoch(0)
    weights = []
    for _ in range(4):
        step.advance()
        weights.append(method.backbone.weight.detach().clone())
    return {"bad": step.bad_step(), "weights": torch.stack(weights)}


def norm(team: Team) -> dict[str, Any]:
    torch.manual_seed(0)
    x, target = torch.randn(12, 5), torch.randn(12, 5)
    module = WholeBatchNorm1d(5).train()
    mine = my_rows(x).clone().requires_grad_()
    ((module(mine) - my_rows(target)) ** 2).mean().backward()
    # DDP divides by the number of processes; what is left here undivided is the sum over them.
    return {"gradient": mine.grad / team.world, "state": module.state_dict()}


def rows(team: Team) -> dict[str, Any]:
    x = torch.arange(12.0).reshape(6, 2)
    mine = my_rows(x).clone().requires_grad_()
    whole = all_rows(mine)
    (whole * whole).sum().backward()
    return {"whole": whole.detach(), "gradient": mine.grad}


def shuffled(team: Team) -> dict[str, Any]:
    torch.manual_seed(0)
    shuffle = BatchShuffle()
    x = torch.randn(8, 3)
    company = lambda part: part - part.mean(0)  # depends on who is in the same hand
    return {"one": shuffle.apart(company, my_rows(x)), "two": shuffle.apart(company, my_rows(x))}


def features(team: Team) -> dict[str, Any]:
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "medium", 4).eval()
    x = torch.randn(7, 3, 16, 16)  # an odd number: the shares differ
    with torch.no_grad():
        return {"features": shared(backbone, team)(x), "one": shared(backbone, team)(x[:1])}


def sent(team: Team) -> dict[str, int]:
    """Bytes that this process gives to each kind of message in a step of bf16."""
    step = step_of(recipe_of("ressl"), team)
    step.precision = torch.bfloat16
    step.begin_epoch(0)
    step.advance()
    step.advance()  # by now DDP has its gradients in order
    count = dict.fromkeys(("gradients", "statistics", "shuffle", "keys"), 0)
    plain, gather, swap = dist.all_reduce, dist.all_gather, dist.all_to_all_single

    def reduced(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        count["gradients"] += bucket.buffer().nbytes
        return plain(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / team.world)

    def all_reduce(x: Tensor, *more: Any, **options: Any) -> Any:
        count["statistics"] += x.nbytes
        return plain(x, *more, **options)

    def all_gather(parts: list[Tensor], x: Tensor) -> None:
        count["keys"] += x.nbytes
        gather(parts, x)

    def all_to_all(found: Tensor, x: Tensor, *counts: list[int]) -> None:
        count["shuffle"] += x.nbytes
        swap(found, x, *counts)

    step.call.register_comm_hook(None, lambda state, bucket: reduced(bucket))  # DDP reads annotations; none please it
    dist.all_reduce, dist.all_gather = all_reduce, all_gather  # type: ignore[assignment]
    dist.all_to_all_single = all_to_all  # type: ignore[assignment]
    try:
        step.advance()
    finally:
        dist.all_reduce, dist.all_gather, dist.all_to_all_single = plain, gather, swap
    return count | {"logs": 4 * len(step.names)}


def talk(team: Team) -> dict[str, Any]:
    order = []
    with team.first():
        order.append(team.rank)
    return {
        "told": team.tell({"rank": team.rank, "text": "é" * (1 + team.rank)}),
        "gathered": team.gather(["x" * team.rank]),
        "agreed": team.agree(team.rank),
        "order": order,
    }


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with joined("cpu") as team:
        found = {name: train(recipe_of(name), team, torch.float64) for name in TWINS}
        found["float32"] = train(recipe_of("ressl"), team)
        found["crops"] = train(recipe_of("ressl", views=CROPS), team, torch.float64, 8)
        found |= {f"whole {name}": train(recipe_of(name, bn_groups=1), team, torch.float64) for name in WHOLE}
        if TIMM:
            found["acts"] = train(recipe_of("simclr", bn_groups=1, backbone=ACTS), team, torch.float64, 8)
        found["head"] = train(recipe_of("ressl", head_batch_norm=True), team, torch.float64)
        for check in (bad_step, norm, rows, shuffled, features, sent, talk):
            found[check.__name__] = check(team)
        torch.save(found, out / f"{team.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)  # as our own commands do: gloo, taken apart at the end of a process, now and then aborts it
