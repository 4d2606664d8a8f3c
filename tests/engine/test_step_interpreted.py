"""The step as the graph engine has it, by Triton's interpreter on a CPU: the fused networks and views made ahead.

What only a GPU has is left out: the graph, its streams, weights in bf16, the fused update, and what is compiled.
"""

from collections.abc import Callable

import numpy as np
import pytest

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="Triton's interpreter before 3.7 cannot count loops with NumPy 2.4",
)

STEPS = """
import os
os.environ["TORCH_COMPILE_DISABLE"] = "1"
import torch
from ressl.bench.steps import pictures
from ressl.data.loaders import ResidentLoader
from ressl.engine import accelerate as engine, kernels
from ressl.engine.lookahead import LookAhead
from ressl.recipes import Recipe, method_options
from ressl.runs import build_method
from ressl.training import Settings, build_step

torch.set_num_threads(1)
SMALL = dict(backbone="resnet10", stem="medium", width=4, image_size=8, batch_size=8, bn_groups=2, epochs=6,
             warmup_epochs=1.0)
OPTIONS = dict(hidden_dim=16, output_dim=8, queue_size=32)

norms, plain_norm = [], kernels.norm_act_twice
kernels.norm_act_twice = lambda *args: (norms.append(1), plain_norm(*args))[1]

def steps(method, fast, seed=0):
    cpu = torch.device("cpu")
    options = {key: value for key, value in OPTIONS.items() if key in method_options(method)}
    recipe = Recipe(name=method).replace(method=method, **(SMALL | options), seed=seed)
    step = build_step(recipe, build_method(recipe), ResidentLoader(pictures(16, 8), 8, cpu, 0),
                      Settings(device="cpu", precision="fp32"), cpu)
    if fast:
        engine._for_graph(step, engine.Ideas(teacher_stream=False))
        assert isinstance(step.prepare, LookAhead)
        plain = step.body
        step.body = lambda batch: (step.turned and step.catch_up(), plain(batch))  # as a graph is replayed
    for epoch, count in enumerate((2, 1)):  # other pictures than the step before has seen coming
        step.begin_epoch(epoch)
        for _ in range(count):
            step.advance()
    return torch.tensor([row["loss"] for row in step.drain()]), step.method.state_dict()

for method in ("ressl", "simclr"):
    plain, other = steps(method, False), steps(method, False, seed=1)
    assert not norms
    ours = steps(method, True)
    assert len(norms) >= 3 * 11  # of each step
    norms.clear()
    torch.testing.assert_close(ours[0], plain[0], rtol=2e-3, atol=2e-4)
    for name, value in plain[1].items():
        torch.testing.assert_close(ours[1][name], value, rtol=2e-3, atol=2e-4, msg=lambda text: name + text)
    assert not torch.allclose(other[0], plain[0], rtol=2e-3)
print("all agree")
"""


def test_the_step_is_the_plain_one(interpret: Callable[[str], None]) -> None:
    interpret(STEPS)
