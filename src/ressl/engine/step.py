"""One training step, from sample numbers to updated weights, without the host.

Everything the step reads or writes is a tensor that stays where it is: the step number, the learning rate, the epoch's
order, the logs. So the same body runs eagerly, compiled, or as one CUDA graph, and resumes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ressl.data.batches import Batch
from ressl.data.loaders import ResidentLoader
from ressl.data.streaming import StreamingLoader
from ressl.data.views import Views
from ressl.engine.optimisers import gradients, set_lr
from ressl.methods.base import Carry, Method, Output
from ressl.nn.keeping import Keeps

ENGINE_LOGS = ("loss", "lr", "grad_norm")


class TrainStep:
    """Owns the step's tensors. ``advance`` makes one step; ``drain`` brings the logs since the last drain to the host.

    A step whose loss or gradient is not finite changes no weight (the optimiser's skip flag is set on the device) and
    is remembered in ``first_bad``, which the loop reads at its log points and before every checkpoint.
    """

    def __init__(
        self,
        method: Method,
        views: Views,
        loader: ResidentLoader | StreamingLoader,
        optimiser: torch.optim.Optimizer,
        schedule: Callable[[Tensor], Tensor],
        total_steps: int,
        *,
        precision: torch.dtype = torch.float32,
        log_capacity: int = 256,
    ) -> None:
        device = next(method.parameters()).device
        self.method, self.views, self.loader, self.optimiser = method, views, loader, optimiser
        self.schedule, self.total_steps, self.precision, self.device = schedule, total_steps, precision, device
        # What the engine puts in from outside: the way a forward goes, where its gradients come to rest, and the mean
        # of logs over several processes.
        self.call: Callable[..., Output] = method
        self.collect: Callable[[], None] = lambda: None
        self.settle: Callable[[], None] = lambda: None  # after a capture
        self.catch_up: Callable[[], None] = lambda: None  # when it has turned
        self.average: Callable[[list[Tensor]], list[Tensor]] | None = None
        self.memory_format, self.engine = torch.contiguous_format, "eager"
        method.epochs = total_steps // loader.steps_per_epoch
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=device)
        self.order = torch.zeros(loader.samples, dtype=torch.int64, device=device)
        self.capacity = log_capacity
        self.names: list[str] = list(ENGINE_LOGS)
        self.ring = torch.zeros(log_capacity, 0, device=device)  # log_capacity x names, once names are known
        self.done = 0  # the host's own count of steps, equal to `step` without asking for it
        self.drained = 0  # steps whose logs have been brought to the host
        self.begun = -1  # the newest epoch that the method was told of
        self.turned = True  # something other than the step before has decided what this one sees
        # One flag on the device for all parts that take up what a step made; they leave a bad one out exactly.
        self.kept = torch.ones((), dtype=torch.bool, device=device)
        for part in method.modules():
            if isinstance(part, Keeps):
                part.kept = self.kept

    def seek(self, step: int, drained: int) -> None:
        """Continue behind ``step`` finished steps, of which the logs up to ``drained`` were written down."""
        self.step.fill_(step)
        self.done, self.drained, self.turned = step, drained, True

    def fill_ring(self, ring: Tensor) -> None:
        """Take over the logs of a checkpoint, whose ring may have had another capacity (other ``log_steps``)."""
        if len(ring) == self.capacity:
            self.ring = ring.clone()
            return
        self.ring = torch.zeros(self.capacity, ring.shape[1], device=self.device)
        for s in range(max(self.drained, self.done - min(len(ring), self.capacity)), self.done):
            self.ring[s % self.capacity] = ring[s % len(ring)]

    def begin_epoch(self, epoch: int) -> None:
        self.order.copy_(self.loader.order(epoch))
        self.turned = True
        if self.begun != epoch:
            self.method.begin_epoch(epoch)
            self.begun = epoch

    def advance(self, batch: Batch | None = None) -> None:
        self.body(batch)
        self.done += 1

    def body(self, batch: Batch | None) -> None:
        with torch.no_grad():
            views, lr = self.prepare(batch)
            wanted = self.wanted(batch)
        set_lr(self.optimiser, lr)
        with torch.autocast(self.device.type, dtype=self.precision, enabled=self.precision != torch.float32):
            output = self.call(views, **wanted)
        output.loss.backward(self.first_gradient(output.loss))
        self.collect()
        self.update(output, lr)
        self.optimiser.zero_grad(set_to_none=True)

    def first_gradient(self, loss: Tensor) -> Tensor | None:
        """With several processes: not a number where this one's loss is none, so that no process takes the step up."""
        if self.average is None:
            return None
        return torch.where(torch.isfinite(loss.detach()), 1.0, float("nan")).to(loss.dtype)

    def prepare(self, batch: Batch | None) -> tuple[list[Tensor], Tensor]:
        """The step's views and learning rate, and the method's own schedules."""
        lr = self.begin()
        return self.make_views(self.step, batch), lr

    def begin(self) -> Tensor:
        """The step's learning rate, and the method's own schedules."""
        self.method.set_progress(self.step / self.total_steps)
        return self.schedule(self.step)

    def make_views(self, step: Tensor, batch: Batch | None) -> list[Tensor]:
        """Views of a step's samples: gathered on the device, or finished from what a streaming loader brought."""
        if batch is not None and batch.crops is not None:
            views = self.views.finish(batch.crops, step, self.loader.rows)
        else:
            assert isinstance(self.loader, ResidentLoader)
            views = self.loader.make_views(self.views, step, self.index(step, batch))
        # In the precision of the networks, which would otherwise make that copy themselves.
        return [view.to(self.precision).contiguous(memory_format=self.memory_format) for view in views]

    def index(self, step: Tensor, batch: Batch | None) -> Tensor:
        """The numbers of a step's samples."""
        if batch is not None:
            return batch.index
        first = (step % self.loader.steps_per_epoch) * self.loader.batch_size
        return self.order[first + self.loader.rows]

    def wanted(self, batch: Batch | None) -> dict[str, Tensor]:
        """What the method asks for besides views."""
        found: dict[str, Tensor] = {}
        for name in self.method.wants:
            found[name] = self.index(self.step, batch) if name == "index" else self.labels(batch)
        return found

    def labels(self, batch: Batch | None) -> Tensor:
        if batch is not None and batch.labels is not None:
            return batch.labels
        assert isinstance(self.loader, ResidentLoader)
        assert self.loader.labels is not None
        return self.loader.labels[self.index(self.step, batch)]

    def grad_norm(self) -> Tensor:
        return torch.stack(torch._foreach_norm(gradients(self.optimiser))).norm()

    @torch.no_grad()
    def update(self, output: Output, lr: Tensor) -> None:
        grad_norm = self.grad_norm()
        finite = torch.isfinite(output.loss.detach()) & torch.isfinite(grad_norm)
        self.optimiser.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.optimiser.step()
        logs = [value.detach() for value in (output.loss, lr, grad_norm, *output.logs.values())]
        if self.average is not None:
            logs = self.average(logs)
        if self.ring.shape[1] != len(logs):  # not yet known, or a checkpoint's of a version that logged other things
            self.names, self.drained = [*ENGINE_LOGS, *output.logs], self.done
            self.ring = torch.zeros(self.capacity, len(self.names), device=self.device)
        self.after(output.carry, finite, logs)

    @torch.no_grad()
    def after(self, carry: Carry, finite: Tensor, logs: list[Tensor]) -> None:
        """What follows the optimiser: teacher and queue, the record of the step, the step number."""
        self.kept.copy_(finite)
        self.method.after_step(_if_finite(carry, finite))
        self.first_bad.copy_(torch.where((self.first_bad < 0) & ~finite, self.step, self.first_bad))
        row = torch.stack([value.float() for value in logs])
        self.ring.index_copy_(0, (self.step % self.capacity).reshape(1), row[None])
        self.step.add_(1)

    def drain(self) -> list[dict[str, float]]:
        """Logs of the steps since the last drain, oldest first. This waits for the device."""
        steps = range(max(self.drained, self.done - self.capacity), self.done)
        rows = self.ring.tolist()
        self.drained = self.done
        return [dict(zip(self.names, rows[s % self.capacity], strict=True)) for s in steps]

    def bad_step(self) -> int | None:
        """The first step that was not finite. This waits for the device."""
        bad = int(self.first_bad)
        return None if bad < 0 else bad


def _if_finite(carry: Carry, finite: Tensor) -> Carry:
    """``carry``, or zeros in its place after a step that was not finite."""
    if isinstance(carry, Tensor):
        return torch.where(finite, carry, torch.zeros_like(carry))
    return None if carry is None else tuple(torch.where(finite, part, torch.zeros_like(part)) for part in carry)
