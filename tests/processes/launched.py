"""Steps of the engine that launches our kernels, interpreted on a CPU, alone or in two: ``python launched.py OUT``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import team as work
import torch
import torch.distributed as dist

from ressl.__main__ import leave
from ressl.engine import accelerate as engine
from ressl.engine.graphs import LaunchedBody
from ressl.engine.processes import Team, joined
from ressl.engine.step import TrainStep
from ressl.recipes import Recipe

STEPS = 3
RECIPES = {
    "ressl": work.recipe_of("ressl", image_size=8, batch_size=8),
    "simclr": work.recipe_of("simclr", image_size=8, batch_size=8, bn_groups=1),  # statistics over the processes
}


def launched(recipe: Recipe, team: Team) -> TrainStep:
    """A step as on a GPU, but for the streams of one."""
    step = work.step_of(recipe, team)
    rehearsal = engine._for_launch(step, engine.Ideas(teacher_stream=False))
    step.body = LaunchedBody(step, print, rehearsal)  # type: ignore[method-assign]
    assert step.call is step.method  # DDP would average gradients once more
    return step


def steps(step: TrainStep) -> dict[str, Any]:
    while step.done < STEPS:
        step.begin_epoch(step.done // 2)  # other pictures than the step before has seen coming
        for _ in range(min(2, STEPS - step.done)):
            step.advance()
    return {"losses": torch.tensor([row["loss"] for row in step.drain()]), "state": step.method.state_dict()}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with joined("cpu") as team:
        found: dict[str, Any] = {name: steps(launched(recipe, team)) for name, recipe in RECIPES.items()}
        if team.world > 1:
            found["sent"] = sent(team)
        torch.save(found, out / f"{team.world}-{team.rank}.pt")


def sent(team: Team) -> int:
    """Messages of gradients in a step: one, of all of them."""
    step, count, plain = launched(RECIPES["ressl"], team), list[int](), dist.all_reduce
    numbers = sum(p.numel() for p in step.method.parameters() if p.requires_grad)

    def counting(x: torch.Tensor, *more: Any, **options: Any) -> Any:
        count.append(x.numel())
        return plain(x, *more, **options)

    dist.all_reduce = counting  # type: ignore[assignment]
    try:
        step.begin_epoch(0)
        step.advance()
    finally:
        dist.all_reduce = plain
    return sum(size == numbers for size in count)


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    main(Path(sys.argv[1]))
    leave(0)
