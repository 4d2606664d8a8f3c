"""What torchrun and SLURM say to the processes they start, in the environment."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass

from ressl.errors import ResslError
from ressl.memory import local_processes


@dataclass(frozen=True)
class Place:
    """What a launcher says in the environment."""

    rank: int
    world: int
    local_rank: int
    address: str
    port: int


def place_in(environment: dict[str, str]) -> Place | None:
    """Where this process stands, from torchrun's variables or else from SLURM's; None when it is alone."""
    try:
        place = _told(environment)
    except ValueError as error:
        raise ResslError(
            f"the launcher's variables (RANK, WORLD_SIZE, SLURM_PROCID ...) are no numbers: {error}"
        ) from None
    if place is not None and not (
        0 <= place.rank < place.world < 2**31 and (place.world == 1 or 0 < place.port < 2**16)
    ):
        raise ResslError(
            f"the launcher's variables make no sense: rank {place.rank} of {place.world} processes that meet at port "
            f"{place.port}; were they left over in this shell? (RANK, WORLD_SIZE, MASTER_PORT, SLURM_PROCID ...)"
        )
    return place


def _told(environment: dict[str, str]) -> Place | None:
    get = environment.get
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Place(
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            int(get("LOCAL_RANK", "0")),
            get("MASTER_ADDR", "127.0.0.1"),
            int(get("MASTER_PORT", "29500")),
        )
    # One task may be a plain `srun ressl ...`; and a shell inside an allocation has the size but no step.
    if int(get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        return Place(
            int(environment["SLURM_PROCID"]),
            int(environment["SLURM_NTASKS"]),
            int(get("SLURM_LOCALID", "0")),
            get("MASTER_ADDR") or _first_host(get("SLURM_STEP_NODELIST") or get("SLURM_JOB_NODELIST", "")),
            int(get("MASTER_PORT") or 20000 + int(get("SLURM_JOB_ID", "0")) % 20000),
        )
    return None


def _first_host(nodes: str) -> str:
    """The first of SLURM's node list: ``node[03-05,9],other`` -> ``node03``."""
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    return "127.0.0.1" if found is None else found.group(1) + (found.group(2) or "")


def restarts() -> int:
    """How often the launcher has started this job again."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT") or os.environ.get("SLURM_RESTART_COUNT") or "0"
    return int(count) if count.isascii() and count.isdigit() else 0


def restarting() -> bool:
    """Whether the launcher starts the job again when one of its processes fails."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def deserted() -> Callable[[], bool]:
    """Tells, from now on, whether the launcher has gone. One that was killed could not send a signal, and what it
    started would train on with nobody to hear of it, or to start it again."""
    if not restarting():  # SLURM ends its processes itself
        return lambda: False
    launcher = multiprocessing.parent_process()
    if launcher is not None:  # of `ressl launch`; the process that its ranks are forked from outlives it
        return lambda: not launcher.is_alive()
    parent = os.getppid()
    return lambda: os.getppid() != parent


def launch() -> str | None:
    """A name for this launch, the same after a restart; None without a launcher."""
    if "SLURM_JOB_ID" in os.environ:
        what = f"slurm {os.environ['SLURM_JOB_ID']}"
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        what = f"torchrun {os.environ['TORCHELASTIC_RUN_ID']} {platform.node()} {os.getppid()}"
    else:
        return None
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def own_cores(cores: int) -> int:
    """How many are this process's part, of ``cores`` that it may use."""
    mine = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if "LOCAL_WORLD_SIZE" not in os.environ and mine.isdigit():
        return max(1, min(cores, int(mine)))  # SLURM may have bound the process to them: no others share them
    return max(1, cores // local_processes())
