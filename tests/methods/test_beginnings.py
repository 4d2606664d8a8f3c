"""What a method begins after a share of the training begins in short runs, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from written import SMALL, Plain

from ressl.bench.steps import pictures
from ressl.data.loaders import ResidentLoader
from ressl.methods import METHODS
from ressl.methods.base import begun
from ressl.recipes import get_recipe, method_options
from ressl.runs import build_method
from ressl.training import Settings, build_step

STEPS = 5  # of an epoch
PARTS: dict[str, dict[str, str]] = {  # by method: the option that says when, and the buffer that shows it
    "swav": {"queue_from": "started", "prototypes_from": "learning"},
    "mochi": {"mix_from": "mixing"},
    "pcl-v2": {"cluster_from": "ready"},
    "localagg": {"cluster_from": "clusters"},
}


def first_epochs(name: str, base: str, epochs: int) -> dict[str, int | None]:
    """The epoch in which each part of a method begins, by its option; a tiny network, and nothing is trained."""
    recipe = get_recipe(base).replace(method=name, epochs=epochs)
    method: Any = METHODS[name](Plain(), **(dict(recipe.options) | SMALL[name])).train()
    before = {buffer: getattr(method, buffer).clone() for buffer in PARTS.get(name, {}).values()}
    found: dict[str, int | None] = dict.fromkeys(PARTS.get(name, {}))
    method.epochs = epochs
    for epoch in range(epochs):
        method.begin_epoch(epoch)
        for step in range(STEPS):
            method.set_progress(torch.tensor((epoch * STEPS + step) / (epochs * STEPS)))
        for option, buffer in PARTS.get(name, {}).items():
            if found[option] is None and not torch.equal(getattr(method, buffer), before[buffer]):
                found[option] = epoch
        if None not in found.values():
            break
    return found


def test_every_option_that_says_when_is_looked_at() -> None:
    for name in METHODS:
        assert {option for option in method_options(name) if option.endswith("_from")} == set(PARTS.get(name, {}))
        assert not [option for option in method_options(name) if option.endswith("_after")]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("base", ["cifar10", "imagenet-r50"])
def test_every_part_begins_within_twenty_epochs(base: str, name: str) -> None:
    found = first_epochs(name, base, 20)
    if (base, name) == ("cifar10", "swav"):  # docs/METHODS.md says why
        assert found.pop("queue_from") is None
    if (base, name) == ("cifar10", "localagg"):  # the same
        assert found.pop("cluster_from") == 10
    assert all(epoch is not None and epoch <= 2 for epoch in found.values()), found


@pytest.mark.parametrize(
    ("name", "base", "epochs", "first"),
    [("pcl-v2", "cifar10", 200, 20), ("localagg", "imagenet-r50", 200, 10), ("pcl-v2", "cifar10", 2, 1)],
)
def test_clusters_begin_with_the_authors_epoch(name: str, base: str, epochs: int, first: int) -> None:
    assert first_epochs(name, base, epochs) == {"cluster_from": first}


@pytest.mark.parametrize("epochs", [10, 20, 100, 200, 800])
def test_the_epoch_nearest_to_the_share_is_the_first(epochs: int) -> None:
    for first in range(1, epochs):
        share = first / epochs
        assert begun(share, first, epochs)
        assert not begun(share, first - 1, epochs)
    assert begun(0.0, 0, epochs)
    assert not begun(0.1, 0, epochs)
    assert not begun(1.0, epochs - 1, epochs)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_engine_says_how_many_epochs_there_are(steps: int) -> None:
    recipe = get_recipe("demo").replace(width=4, batch_size=16, bn_groups=2, queue_size=32, epochs=7)
    loader = ResidentLoader(pictures(16 * steps, 32), 16, torch.device("cpu"), 0)
    step = build_step(recipe, build_method(recipe), loader, Settings(device="cpu"), torch.device("cpu"))
    assert step.method.epochs == 7
