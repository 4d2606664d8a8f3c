"""Several processes that train together: how they meet, what they agree on, how they part.

They are started by ``torchrun``, ``ressl launch`` or SLURM; this file only reads what those say in the environment.
Each process holds the whole state (weights, teacher, queue, running statistics, logs), the same to the bit on all of
them, so rank 0 alone writes and a checkpoint knows nothing of how many there were.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ressl.checkpoints import Checkpoint
from ressl.engine.launchers import Place, place_in, restarts
from ressl.engine.signals import Interrupted, undefended
from ressl.engine.watch import Watch, patience
from ressl.errors import ResslError
from ressl.nn.processes import all_rows

POLL = 0.1  # seconds between two looks for rank 0's word
OTHERS = "another process of this job failed or was ended; its own message says why"
TIMEOUT = timedelta(minutes=10)  # of a collective; a dead process is noticed much sooner, see watch.py


class LostContact(ResslError):
    """Another process of the job failed; what it said is the reason."""

    exit_code = 1  # nobody's mistake here: a launcher may try again


@dataclass(frozen=True)
class Team:
    """This process's place among those that train together. One process alone is a team of one."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    control: Any = None  # a gloo group for the small things the hosts agree on, apart from the device's traffic
    store: Any = None  # where they leave word, as long as it may take
    turns: Iterator[int] = field(default_factory=count, compare=False)  # of :meth:`first`

    @property
    def leads(self) -> bool:
        """Rank 0: the one that shows, writes and decides."""
        return self.rank == 0

    @property
    def rhythm(self) -> int:
        """Steps between two questions whether to stop. Up to 8 processes: every step."""
        return max(1, self.world // 8)

    def agree(self, value: int) -> int:
        """The largest value among the processes; every one must ask."""
        if self.world == 1:
            return value
        shared = torch.tensor(value)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self.control)
        return int(shared)

    def wait(self) -> None:
        """Until all are here."""
        self.agree(0)

    @contextmanager
    def first(self) -> Iterator[None]:
        """The block runs on rank 0 before it runs on the others (a download, an index that is then found).

        That may take longer than a collective may, so the others look for word of its end, and for nothing else: if
        rank 0 dies meanwhile, the watch ends them.
        """
        if self.world == 1:
            yield
            return
        word, said = f"first/{next(self.turns)}", "failed"
        while not self.leads and not self.store.check([word]):
            time.sleep(POLL)
        if not self.leads and self.store.get(word) == b"failed":
            raise LostContact(OTHERS)
        try:
            yield
            said = "done"
        finally:
            if self.leads:
                self.store.set(word, said)

    def tell(self, value: Any) -> Any:
        """Rank 0's value (anything that JSON holds) on every process."""
        return value if self.world == 1 else self._from(0, value)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, by rank."""
        return [value] if self.world == 1 else [self._from(source, value) for source in range(self.world)]

    def _from(self, source: int, value: Any) -> Any:
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor(len(data))
        dist.broadcast(size, source, group=self.control)
        data = data if self.rank == source else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, source, group=self.control)
        return json.loads(data.numpy().tobytes())

    def share_checkpoint(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Rank 0's checkpoint on every process; only rank 0 needs to see the file."""
        if self.world == 1:
            return checkpoint
        names = (
            {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in checkpoint.tensors.items()}
            if checkpoint
            else None
        )
        said = self.tell({"names": names, "facts": checkpoint.facts if checkpoint else None})
        if said["names"] is None:
            return None
        tensors = {}
        for name, (kind, *shape) in said["names"].items():
            mine = (
                checkpoint.tensors[name].contiguous() if checkpoint else torch.empty(shape, dtype=getattr(torch, kind))
            )
            dist.broadcast(mine, 0, group=self.control)
            tensors[name] = mine
        return Checkpoint(tensors, said["facts"])


ALONE = Team()
_current: Team | None = None


def current() -> Team:
    """The team that this process has joined, or a team of one."""
    return _current or ALONE


@contextmanager
def joined(device: str = "auto") -> Iterator[Team]:
    """The team of this process. Inside another ``joined`` it is that one's; without a launcher, a team of one.

    An error of another process comes up as :class:`LostContact`.
    """
    global _current
    place = place_in(dict(os.environ))
    if _current is not None or (not dist.is_initialized() and (place is None or place.world == 1)):
        yield current()
        return
    importlib.import_module("ressl.nn.resnet")  # it takes seconds, in which nobody should have to wait for this process
    watch = None
    with suppress(OSError):  # so that `top` and `pgrep` show which process is which
        Path("/proc/self/comm").write_text(f"ressl rank {place.rank if place else dist.get_rank()}")
    local_rank = place.local_rank if place else 0
    if not dist.is_initialized():
        assert place is not None
        with undefended():  # some may not come, which takes minutes to be sure of
            watch = _meet(place, device)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    store = dist.distributed_c10d._get_default_store()  # a group's own has no other name
    _current = Team(dist.get_rank(), dist.get_world_size(), local_rank, control, dist.PrefixStore("team", store))
    try:
        try:
            yield _current
        except Interrupted:  # all of them, after the same step: as orderly as the end
            _part(_current, watch)
            raise
        _part(_current, watch)
    except (RuntimeError, ConnectionError) as error:
        if not lost_contact(error):
            raise
        raise LostContact(OTHERS) from None
    finally:
        _current = None


def _part(team: Team, watch: Watch | None) -> None:
    team.wait()  # rank 0 may still be writing
    if watch is not None:
        watch.close()
        dist.destroy_process_group()


def _meet(place: Place, device: str) -> Watch:
    limit = patience()  # a mistake there is said before the processes wait for one another
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    # A store of our own, apart by attempt. torchrun's own store outlives a restart and still holds the addresses of
    # the processes before; those after would call on the dead (gloo then waits until its timeout).
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = dist.TCPStore(
            place.address, place.port, place.world, is_master=place.rank == 0 and not shared, timeout=TIMEOUT
        )
        # One of our own is new in every attempt; and of several agents only those that lost a process count it.
        attempt = dist.PrefixStore(f"ressl/{restarts() if shared else 0}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=attempt, rank=place.rank, world_size=place.world, timeout=TIMEOUT,
        )  # fmt: skip
    except (RuntimeError, ConnectionError) as error:
        first = str(error).split("\n")[0]
        raise LostContact(
            f"the {place.world} processes did not meet at {place.address}:{place.port}: {first}; "
            "check that all were started and that MASTER_ADDR and MASTER_PORT are reachable"
        ) from None
    return Watch(dist.PrefixStore("watch", attempt.clone()), place.rank, place.world, limit)


def lost_contact(error: BaseException) -> bool:
    """Whether an error is of the kind that a collective raises when another process has gone."""
    if isinstance(error, (ConnectionError, dist.DistError)):
        return True
    words = r"onnection (closed|reset|refused)|gloo|NCCL|[Bb]roken pipe|[Tt]imed out waiting|failed to (recv|send)"
    return isinstance(error, RuntimeError) and re.search(words, str(error)) is not None


def device_for(device: torch.device, team: Team) -> torch.device:
    """The card of this process: each of a machine's processes has its own."""
    if device.type != "cuda" or team.world == 1:
        return device
    if device.index is not None:
        raise ResslError(f"{team.world} processes cannot all use {device}; say --device cuda, and each takes its own")
    return torch.device("cuda", team.local_rank % torch.cuda.device_count())


def groups_here(groups: int, world: int) -> int:
    """Batch-norm groups of one process when the global batch has ``groups``; never less than one."""
    if groups > world and groups % world:
        raise ResslError(
            f"{groups} batch-norm groups cannot be shared evenly by {world} processes; "
            f"use --bn-groups {world * max(1, groups // world)}, or another number of processes"
        )
    return max(1, groups // world)


def parallel(method: nn.Module, device: torch.device) -> nn.Module:
    """``method`` with its gradients averaged over the processes as they arise."""
    # Buffers are kept equal by us (see averager). The argument that says so has a new name in newer versions of torch.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    settings: dict[str, Any] = {buffers: False}
    if device.type == "cuda":
        settings["device_ids"] = [device]
    # CPC v2's gradients of 1 x 1 kernels may lie as channels last: a copy more, and nothing for who runs a command.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    # static_graph: parameters without a gradient are found once, not in every step.
    return DistributedDataParallel(method, gradient_as_bucket_view=True, static_graph=True, **settings)


def averager(method: nn.Module, world: int) -> Callable[[list[Tensor]], list[Tensor]]:
    """Means over the processes of a step's logs, and in the same message of batch norm's running statistics.

    With the statistics equal everywhere, evaluation and checkpoints need no second look; and as they are moving
    averages, their mean over processes is what one process with as many groups would have.
    """
    norms = [m for m in method.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    statistics: list[Tensor] = [b for m in norms for b in (m.running_mean, m.running_var) if b is not None]
    sizes = [b.numel() for b in statistics]

    @torch.no_grad()
    def average(logs: list[Tensor]) -> list[Tensor]:
        mine = torch.cat([torch.stack([v.float() for v in logs]), *(b.reshape(-1) for b in statistics)])
        dist.all_reduce(mine)
        mine /= world
        if statistics:
            torch._foreach_copy_(statistics, list(mine[len(logs) :].split(sizes)))
        return list(mine[: len(logs)].unbind())

    return average


class SharedForward(nn.Module):
    """A frozen backbone whose batches are shared by the processes: every one gives the same batch and gets the whole
    result, having computed its own part of it."""

    def __init__(self, backbone: nn.Module, team: Team) -> None:
        super().__init__()
        self.backbone, self.team = backbone, team

    def forward(self, x: Tensor) -> Tensor:
        rank, world = self.team.rank, self.team.world
        mine = x[rank::world]
        missing = -(-len(x) // world) - len(mine)
        if missing:  # the last rows' turn does not come round to everyone
            mine = torch.cat([mine, x[:missing]])
        return all_rows(self.backbone(mine))[: len(x)]


def shared(backbone: nn.Module, team: Team) -> nn.Module:
    return backbone if team.world == 1 else SharedForward(backbone, team)
