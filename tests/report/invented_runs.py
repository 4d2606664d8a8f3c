"""Runs for pages, with invented numbers and pictures."""

from __future__ import annotations

from typing import Any

import torch

from ressl.report.contents import Grid, Plane, RunPage
from ressl.report.page import render


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (*shape, 3, 8, 8), dtype=torch.uint8, generator=draw)


def make_run(name: str = "run", classes: tuple[str, str] = ("cat", "dog"), **changes: Any) -> RunPage:
    facts: dict[str, Any] = {
        "name": name,
        "title": f"ReSSL on {name}",
        "lead": "a lead",
        "tiles": [("linear, top-1", "68.95 %")],
        "evaluations": {
            "linear": {"protocol": "linear", "last": 68.9453, "best": 69.8, "best_epoch": 12},
            "classes": {
                "protocol": "classes", "classes": list(classes), "accuracy": [50.0, 75.0], "top1": 62.5,
                "mistaken": [[classes[0], classes[1], 2]], "confusion": [[2, 2], [1, 3]],
            },
        },
        "paper": {"linear": 90.2},
        "metrics": [{"epoch": e, "loss": 5 - e, "knn": 10.0 * e, "teacher_entropy": 2.0} for e in range(1, 4)],
        "queue_size": 16,
        "recipe": {"epochs": "3", "data": name},
        "environment": {"torch": "2.15", "cpu": "a cpu"},
        "grids": [Grid("as it is", list(classes), pictures(2), pictures(2, 10), torch.arange(20).view(2, 10) % 3 > 0)],
        "plane": Plane(torch.randn(12, 2), torch.arange(12) % 2, pictures(12), list(classes)),
    }  # fmt: skip
    return RunPage(**(facts | changes))


def page_of(*runs: RunPage) -> str:
    return render(runs, {"cifar10": {"epochs": "200", "data": "cifar10"}}, "1 January 2030")
