"""Speed, applied from outside: channels-last, compiled kernels, and the whole step as one CUDA graph.

Methods, views and loaders know nothing of it, and the step computes the same with and without.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ressl.data.loaders import ResidentLoader
from ressl.engine.ahead import Rehearsal
from ressl.engine.building import dismiss
from ressl.engine.compiling import compiled, keep_compiled, missing_compiler, quieten, small_workspaces
from ressl.engine.convolutions import WeightGradients
from ressl.engine.fusion import LowPrecisionWeights, fuse
from ressl.engine.graphs import GraphedBody, Watcher
from ressl.engine.launching import Launch
from ressl.engine.lookahead import look_ahead
from ressl.engine.step import TrainStep
from ressl.errors import unknown
from ressl.methods.base import Method
from ressl.nn.ema import EMATeacher
from ressl.nn.processes import world

Engine = Literal["auto", "eager", "compile", "graph"]
ENGINES: tuple[str, ...] = get_args(Engine)
LONG = 5e8  # pixels that a run on a CPU sees (the demo: 7e7): compiling, a minute at most, is then a part of its gain


@dataclass(frozen=True)
class Ideas:
    """What makes the graph engine fast, one by one, so that the benchmark can tell what each is or would be worth."""

    fused_norms: bool = True  # batch norm, residual add and ReLU in our kernels
    shared_results: bool = True  # no separate add where two gradients meet
    stem_product: bool = True  # the first convolution as one matrix product, or with fewer zeros
    fused_pool: bool = True  # the max-pool behind it in the kernel of its norm
    paired_pixels: bool = True  # two pixels at once where a convolution has few channels
    inside_pixels: bool = True  # no products with the zeros around few pixels
    teacher_stream: bool = True  # teacher and student beside each other
    gradient_stream: bool = True  # weight gradients beside the rest of the backward
    bf16_copies: bool = True  # all weights to bf16 in one kernel, once a step
    fused_update: bool = True  # gradient norm, SGD and teacher in one kernel each, queue and logs in compiled ones
    look_ahead: bool = True  # the next step's views beside this step
    tried_convolutions: bool = True  # the library tries its kernels for each convolution instead of guessing


ALL_IDEAS = Ideas()


def lay_out(method: nn.Module, device: torch.device) -> nn.Module:
    """Move to the device in the layout its convolutions like; before the optimiser is made, whose state follows it."""
    method.to(device)
    return method.to(memory_format=torch.channels_last) if device.type == "cuda" else method


def lay(step: TrainStep, layout: torch.memory_format) -> None:
    """The same for a step that is made already: weights, what the optimiser keeps of them, and views."""
    step.method.to(memory_format=layout)
    step.memory_format = layout
    for p, kept in step.optimiser.state.items():
        for name, value in kept.items():
            kept[name] = torch.empty_like(p).copy_(value)


def _fastest(step: TrainStep) -> str:
    """What ``auto`` means, start-up included."""
    if step.device.type == "cuda":
        return "graph"
    seen = step.total_steps * step.loader.batch_size * max(view.size for view in step.views.views) ** 2
    # Not with a streaming loader: it forks its workers soon, and a process forks best without threads.
    return "compile" if seen >= LONG and world() == 1 and isinstance(step.loader, ResidentLoader) else "eager"


def accelerate(
    step: TrainStep,
    engine: str,
    say: Callable[[str], None] = lambda text: None,
    ideas: Ideas = ALL_IDEAS,
    exact: bool = False,
    watcher: Watcher | None = None,
) -> None:
    """Make ``step`` fast on its device; where that is not the way asked for, ``say`` why. ``step.engine`` tells.

    ``watcher`` is told what the first step is busy with, which may take half a minute.

    ``exact``: only with kernels that another process would take as well. What is tried may come out otherwise there,
    and add in another order.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    on_gpu = step.device.type == "cuda"
    wanted = _fastest(step) if engine == "auto" else engine
    if wanted == "graph" and not on_gpu:
        wanted = "eager"
        say("engine eager, because CUDA graphs need a CUDA device")
    elif wanted == "graph" and world() > 1:
        wanted = "compile"
        say("engine compile, because a step that several processes share is not captured as one CUDA graph")
    elif wanted == "compile" and not on_gpu and (why := missing_compiler()):
        wanted = "eager"
        say(f"engine eager, because {why}")
    if wanted != "eager":
        keep_compiled()
        small_workspaces()
        torch._dynamo.reset()  # a new step is a new program; after a few variants of one the compiler would give up
        # What meets views one by one has a variant for each; up to four, the compiler's own limit of eight is enough.
        if (views := len(step.views.views)) > 4:
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 2 * views)
        # On a CPU what cannot be compiled runs as it is, unless somebody wants to hear of it; a graph says so itself.
        torch._dynamo.config.suppress_errors = not (on_gpu or torch._dynamo.config.fail_on_recompile_limit_hit)
        gc.collect()  # an earlier step in this process, with its graph
    if on_gpu:
        torch.backends.cudnn.benchmark = ideas.tried_convolutions and not exact
        torch.backends.cudnn.deterministic = exact
        if wanted != "eager":
            import torch._inductor.config as compiler  # here, because it takes long

            compiler.deterministic = exact
        torch.set_float32_matmul_precision("high")  # TF32: three bits more than bf16 has, at tensor-core speed
        step.memory_format = torch.channels_last
    elif wanted == "compile":
        quieten()
        if world() == 1:  # else DDP has laid out its gradients
            lay(step, torch.channels_last)
        say("engine compile: the first step may take a minute or two; its kernels are kept for later runs")
    if wanted == "compile":
        step.prepare = compiled(step.prepare)  # type: ignore[method-assign]
        step.call = compiled(step.call)
        step.after = compiled(step.after)  # type: ignore[method-assign]
    rehearsal = None
    if wanted == "graph":
        rehearsal = _for_graph(step, ideas)
        step.body = GraphedBody(step, say, rehearsal, watcher)  # type: ignore[method-assign]
    if rehearsal is None:
        dismiss()
    step.engine = wanted


def _for_graph(step: TrainStep, ideas: Ideas) -> Rehearsal | None:
    """Networks by the library's convolutions and our norms; all the small things around them compiled."""
    method, rehearsal = step.method, None
    how = {"shared": ideas.shared_results, "stem_product": ideas.stem_product, "pooled": ideas.fused_pool}
    how |= {"paired": ideas.paired_pixels, "inside": ideas.inside_pixels}
    # Not with a streaming loader: it forks its workers soon, and a process forks best without threads.
    if ideas.fused_norms and step.device.type == "cuda" and isinstance(step.loader, ResidentLoader):
        rehearsal = _rehearsal(step, ideas.fused_update, **how)
    gradients = WeightGradients(step.device) if ideas.gradient_stream else None
    if ideas.fused_norms:
        fuse(method, gradients, **how, compiled=True)
    if gradients is not None:
        step.collect = gradients.join
    low = None
    if step.precision != torch.float32 and ideas.bf16_copies:
        low = LowPrecisionWeights(method, step.precision, gradients)
        step.call, step.collect = low, low.collect
    aside = Beside(step.device) if ideas.teacher_stream else None
    target: Any = getattr(method, "target", None)
    if target is not None:
        method.target = torch.compiler.disable(target if aside is None else aside(target))
    for child in method.children():
        network = any(True for _ in child.parameters())  # what is left of forward without them is the loss
        child.forward = torch.compiler.disable(child.forward) if network else compiled(child.forward)
    forward = compiled(method.forward)
    method.forward = forward if aside is None else aside.mark(forward)  # type: ignore[method-assign]
    if ideas.fused_update:
        _update_at_once(step, low)
        step.after = compiled(step.after)  # type: ignore[method-assign]
    if ideas.look_ahead and isinstance(step.loader, ResidentLoader):
        look_ahead(step)
    else:
        step.prepare = compiled(step.prepare)  # type: ignore[method-assign]
    return rehearsal


def _update_at_once(step: TrainStep, low: LowPrecisionWeights | None) -> None:
    """Gradient norm, SGD and moving average by our kernels, where it is that kind of update."""
    if step.device.type != "cuda":
        return
    from ressl.engine.updating import Update, can_update  # here, because Triton is not on every machine

    teachers = [part for part in step.method.modules() if isinstance(part, EMATeacher)]
    if not can_update(step.optimiser):
        for teacher in teachers:  # three operations over all weights; as many programs as weights, if compiled
            teacher.update = torch.compiler.disable(teacher.update)  # type: ignore[method-assign]
        return
    assert isinstance(step.optimiser, torch.optim.SGD)
    if low is None:
        update = Update(step.optimiser, teachers, lambda p: p.grad, lambda: None)
    else:
        update = Update(step.optimiser, teachers, low.gradient, low.forget)
        step.collect = low.join
    step.optimiser.step = update.step  # type: ignore[method-assign, assignment]
    step.grad_norm, step.settle = update.norm, update.settle  # type: ignore[method-assign]


def _update_kernels(step: TrainStep) -> list[Launch]:
    from ressl.engine.updating import can_update, kernels_of  # here, because Triton is not on every machine

    optimiser = step.optimiser
    return kernels_of(optimiser) if isinstance(optimiser, torch.optim.SGD) and can_update(optimiser) else []


def _rehearsal(step: TrainStep, update: bool, **how: bool) -> Rehearsal | None:
    """Of the student's network on its views; a teacher's is the same. With the kernels of our update, if it is used."""
    with contextlib.suppress(Exception):  # a network of another kind: it is made ready as it goes
        calls = calls_of(step.method, [view.size for view in step.views.views])
        shape = (step.loader.batch_size, 3, calls[0][0], calls[0][0])
        also = _update_kernels(step) if update else []
        found = Rehearsal(step.method.backbone, shape, step.precision, calls, also, **how)
        found.start()
        return found
    return None


def calls_of(method: Method, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(side, how many views at once) of each call of a network that differs from the others; the largest first."""
    student = sizes[1:] if method.ema and len(sizes) > method.backprops else sizes  # a teacher's view comes first
    calls = {(side, student.count(side)) for side in student}
    return sorted(calls | ({(sizes[0], 1)} if method.ema else set()), reverse=True)


class Beside:
    """Runs a function on a stream of its own, from the start of the forward it belongs to.

    In a captured graph this makes teacher and student two branches that share the card.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.start = torch.cuda.Event()

    def mark(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward``, noting when it begins."""

        def marked(*args: Any, **wanted: Any) -> Any:
            self.start.record(torch.cuda.current_stream(self.device))
            return forward(*args, **wanted)

        return marked

    def __call__(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def aside(*args: Any) -> Tensor:
            main = torch.cuda.current_stream(self.device)
            self.stream.wait_event(self.start)
            with torch.cuda.stream(self.stream):
                result = function(*args)
            main.wait_stream(self.stream)
            result.record_stream(main)
            return result

        return aside
