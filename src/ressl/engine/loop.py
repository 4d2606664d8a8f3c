"""The training loop: a straight line of epochs and steps, with the places where it looks, saves and stops."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ressl.checkpoints import Checkpoint, CheckpointFolder, not_finite
from ressl.data.batches import Batch
from ressl.data.streaming import StreamingLoader
from ressl.engine.background import Background
from ressl.engine.generators import random_states, set_random_states
from ressl.engine.launchers import deserted, launch
from ressl.engine.monitor import Collapse, NonFinite
from ressl.engine.optimisers import load_optimiser_tensors, optimiser_tensors
from ressl.engine.processes import ALONE, Team
from ressl.engine.records import Records
from ressl.engine.signals import Interrupted, Leave, StopRequest
from ressl.engine.step import TrainStep
from ressl.errors import ResslError, printable


class Display(Protocol):
    """Where progress goes: a bar on a terminal, lines in a log, nowhere."""

    def progress(self, done: int, total: int, values: dict[str, float]) -> None: ...
    def busy(self, what: str, done: int, total: int) -> None: ...  # other long work: reading pictures
    def message(self, text: str) -> None: ...


@dataclass(frozen=True)
class Rhythm:
    """How often the loop looks up. None of it changes the result."""

    log_steps: int = 50
    checkpoint_epochs: int = 1
    checkpoint_minutes: float = 5.0
    checkpoint_steps: int = 0  # above 0: also after every so many steps, whatever it costs
    checkpoint_share: float = 0.005  # of the time at most, for all but those; on a slow disk they become rarer


RHYTHM = Rhythm()
ASIDE = 0.2  # of its time is what a write beside the training counts: other cores and the disk do it


class Loop:
    def __init__(
        self,
        step: TrainStep,
        *,
        epochs: int,
        records: Records | None,
        checkpoints: CheckpointFolder,
        facts: dict[str, Any],
        display: Display,
        collapse: Collapse,
        evaluate: Callable[[], dict[str, float]] | None = None,
        evaluate_every: int = 0,
        rhythm: Rhythm = RHYTHM,
        team: Team = ALONE,
    ) -> None:
        """``records`` is None on every process but the first of a team, which alone writes."""
        self.step, self.epochs, self.records, self.checkpoints = step, epochs, records, checkpoints
        self.facts, self.display, self.collapse, self.rhythm = facts, display, collapse, rhythm
        self.evaluate, self.evaluate_every, self.team = evaluate, evaluate_every, team
        self.values: dict[str, float] = {}  # the newest of everything, for the display
        self.checkpoint_seconds, self.checkpoint_count = 0.0, 0
        self._owed = epochs == 0  # the end of an epoch that was reached but not yet evaluated
        self._moved = False  # whether this process made a step
        self._warned = False  # of a disk that is nearly full
        self._deserted = deserted()  # whether the launcher was killed
        self._writer = Background()  # of checkpoints, where the GPU can go on meanwhile
        self._cost, self._saved_at, self._saved_step = 0.0, time.monotonic(), step.done
        self._logged_at, self._logged_step = time.monotonic(), step.done

    def run(self) -> None:
        """Train to the end. A signal saves and raises :class:`Interrupted`."""
        with StopRequest(launched=launch() is not None) as stop:
            finished = False
            with contextlib.suppress(Leave):  # raised between two steps, or in the process's first
                self._run(stop)
                finished = True
            if self._moved and self._saved_step != self.step.done:  # what was left in its first step counts for nothing
                self.save()
            self._writer.finish()
            if not finished and stop.signum is not None:
                raise Interrupted(stop.signum, self.step.done)

    def _run(self, stop: StopRequest) -> None:
        step, per_epoch = self.step, self.step.loader.steps_per_epoch
        if self._owed:
            self._end_epoch(step.done // per_epoch - 1, stop)
        for epoch in range(step.done // per_epoch, self.epochs):
            step.begin_epoch(epoch)
            for batch in self._batches(epoch, step.done % per_epoch, stop):
                # The first may compile for minutes, and there is nothing to lose yet.
                with stop.at_once(not self._moved and self.team.world == 1):
                    step.advance(batch)
                self._moved = True
                self._owed = step.done % per_epoch == 0
                if step.done % self.rhythm.log_steps == 0 or self._owed:
                    self.log()
                if not self._owed and self._due():
                    self.save()
                self._leave(stop, self._owed)
            self._end_epoch(epoch, stop)

    def _leave(self, stop: StopRequest, certainly: bool = True) -> None:
        """Leave if any process was asked to stop, or deserted; all of a team hear of it after the same step."""
        if stop.signum is None and self._deserted():
            stop.heard(signal.SIGTERM)
        if self.team.world == 1:
            stop.leave()
        elif certainly or self.step.done % self.team.rhythm == 0:
            agreed = self.team.agree(stop.signum or 0)
            if agreed:
                stop.heard(agreed)
                raise Leave

    def _batches(self, epoch: int, first: int, stop: StopRequest) -> Iterator[Batch | None]:
        loader = self.step.loader
        if isinstance(loader, StreamingLoader):
            batches = loader.iterate(epoch, first)
            while True:
                with stop.at_once(self.team.world == 1):  # a disk may keep us waiting
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        else:  # resident: the step gathers its own samples
            for _ in range(first, loader.steps_per_epoch):
                yield None

    def _end_epoch(self, epoch: int, stop: StopRequest) -> None:
        """Evaluate and save. Broken off by a signal, it is owed: the resumed run begins with it."""
        last, resumed = epoch + 1 == self.epochs, not self._moved
        if self.evaluate is not None and (last or (self.evaluate_every and (epoch + 1) % self.evaluate_every == 0)):
            self._refuse_spoilt(self._learned())  # numbers made of what is none would only mislead
            with stop.at_once(self.team.world == 1):
                values = self.evaluate()
            self.values |= values
            if self.records is not None:
                self.records.write({"step": self.step.done, "epoch": epoch + 1} | values)
            self.display.progress(self.step.done, self.step.total_steps, self.values)
            self._logged_at = time.monotonic()  # evaluation does not count as training time
        self._owed = False
        if last or resumed or self._due() or ((epoch + 1) % self.rhythm.checkpoint_epochs == 0 and self._affordable()):
            self.save()
        self._leave(stop)

    def log(self) -> None:
        """Bring the device's logs home, write a row, look for trouble."""
        self._writer.check()
        step, loader = self.step, self.step.loader
        rows = step.drain()
        bad = step.bad_step()
        if bad is not None:
            raise NonFinite(self._non_finite(bad, rows))
        means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        means["lr"] = rows[-1]["lr"]
        now = time.monotonic()
        speed = (step.done - self._logged_step) * loader.batch_size / max(now - self._logged_at, 1e-9)
        self._logged_at, self._logged_step = now, step.done
        row = {"step": step.done, "epoch": step.done / loader.steps_per_epoch, **means, "images_per_second": speed}
        if self.records is None:
            return
        self.records.write(row)
        self.values |= row
        self.display.progress(step.done, step.total_steps, self.values)
        warning = self.collapse.look(step.done, means)
        if warning:
            self.display.message(f"warning: {warning}")

    def _non_finite(self, bad: int, rows: list[dict[str, float]]) -> str:
        loader = self.step.loader
        epoch, place = divmod(bad, loader.steps_per_epoch)
        first = self.step.done - len(rows)
        row = rows[bad - first] if first <= bad < self.step.done else {}
        what = ", ".join(f"{name} {row[name]}" for name in ("loss", "grad_norm") if name in row)
        # Weights that are not finite have not become so by this step, which was left out.
        earlier = not_finite(dict(self.step.method.named_parameters()))
        nobody = "no checkpoint" if earlier else "no weight, teacher or checkpoint"
        return (
            f"step {bad} (epoch {epoch}, batch {place}) is not finite ({what}); {nobody} took it up, and "
            f"{self.checkpoints.last}; lower lr, or look at that batch"
        )

    def _learned(self) -> dict[str, Tensor]:
        """What training changes, as a checkpoint names it."""
        method, optimiser = self.step.method, optimiser_tensors(self.step.optimiser, self.step.method)
        tensors = {f"method.{name}": tensor for name, tensor in method.state_dict().items()}
        return tensors | {f"optimiser.{name}": tensor for name, tensor in optimiser.items()}

    def _refuse_spoilt(self, learned: dict[str, Tensor]) -> None:
        """Raise where something is not finite, though every loss and gradient was: an update may overflow, and so may
        running statistics. All processes of a team hold the same, so all find it."""
        if name := not_finite(learned):
            last = max(0, self.step.done - 1)
            epoch, place = divmod(last, self.step.loader.steps_per_epoch)
            raise NonFinite(
                f"after step {last} (epoch {epoch}, batch {place}) {name} is not finite; no checkpoint took it up, and "
                f"{self.checkpoints.last}; lower lr"
            )

    def _due(self) -> bool:
        every = self.rhythm.checkpoint_steps
        if every and self.step.done % every == 0:
            return True
        return time.monotonic() - self._saved_at > 60.0 * self.rhythm.checkpoint_minutes and self._affordable()

    def _affordable(self) -> bool:
        cost = self._cost + ASIDE * self._writer.seconds
        return (time.monotonic() - self._saved_at) * self.rhythm.checkpoint_share >= cost

    def save(self) -> None:
        """Write a checkpoint, unless something went wrong since the last look."""
        step = self.step
        bad = step.bad_step()
        if bad is not None:
            raise NonFinite(self._non_finite(bad, step.drain()))
        start, tensors = time.monotonic(), self._learned()
        self._refuse_spoilt(tensors)
        self._saved_step = step.done
        if not self.team.leads:
            self._saved_at = start  # or every step from now on would be looked at
            return
        tensors |= {f"random.{name}": state for name, state in random_states(step.device).items()}
        tensors["engine.ring"] = step.ring
        facts = {**self.facts, "step": step.done, "drained": step.drained, "logs": step.names, "begun": step.begun}
        facts |= {"owed": self._owed, "rows": 0 if self.records is None else self.records.sync()}
        checkpoint = Checkpoint(tensors, facts)
        warning = self.checkpoints.look_at_disk(checkpoint.size)
        if warning and not self._warned:
            self._warned = True
            self.display.message(f"warning: {warning}")
        if step.device.type == "cuda":  # it trains on while the processor encodes and writes
            done, copy = step.done, Checkpoint({name: t.cpu() for name, t in tensors.items()}, facts)
            self._writer.start(lambda: self.checkpoints.save(done, copy))
        else:
            self.checkpoints.save(step.done, checkpoint)
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - start
        self.checkpoint_seconds += self._cost
        self.checkpoint_count += 1
        self._logged_at += self._cost  # so that images/s is the training's own

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put everything back where ``checkpoint`` left it."""
        step, place = self.step, checkpoint.place(self.step.total_steps)
        if name := checkpoint.spoilt():
            raise ResslError(f"the checkpoint's {printable(name)} is not finite; start a run with another --out")
        try:
            step.method.load_state_dict(checkpoint.part("method."))
            load_optimiser_tensors(step.optimiser, step.method, checkpoint.part("optimiser."))
            set_random_states(checkpoint.part("random."), step.device)
        except (RuntimeError, TypeError, ValueError) as error:
            first = printable(str(error).split("\n")[0])
            raise ResslError(f"the checkpoint belongs to another model: {first}") from error
        step.seek(place.step, place.drained)
        per_epoch = step.loader.steps_per_epoch
        # Older checkpoints do not say: every end of an epoch was finished, every epoch within it begun.
        step.begun = checkpoint.facts.get("begun", place.step // per_epoch if place.step % per_epoch else -1)
        reached = place.step % per_epoch == 0 and (place.step > 0 or self.epochs == 0)
        self._owed = reached and checkpoint.facts.get("owed", False) is True
        step.names = place.logs
        step.fill_ring(checkpoint.tensors["engine.ring"].to(step.ring))
        self._saved_step = self._logged_step = step.done


def device_of(name: str) -> torch.device:
    """``auto`` takes the GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ResslError(f"unknown device '{name}'; use auto, cpu, cuda or cuda:0") from error
    if device.type not in ("cpu", "cuda"):
        raise ResslError(f"unknown device '{name}'; use auto, cpu, cuda or cuda:0")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ResslError(f"'{name}' was asked for, but PyTorch sees no such CUDA device here; use --device cpu")
    return device
