"""What the tests of the benchmark measure: a step so small that it takes no time."""

from __future__ import annotations

import torch

from ressl.bench import suite
from ressl.recipes import Recipe, get_recipe

CPU = torch.device("cpu")


def toy() -> Recipe:
    return suite.small(get_recipe("cifar10")).replace(width=4, batch_size=16, bn_groups=2, queue_size=64, image_size=16)
