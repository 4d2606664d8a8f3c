"""Processes of one job must see the same pictures, and hold them or not.

With others, or with more of them, one would wait for the rest without end, or train on samples that another has taken.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np
import torch

from ressl.data.base import ArraySource, Source
from ressl.data.batches import Loader
from ressl.data.unread import may_be_held
from ressl.engine.processes import Team
from ressl.errors import ResslError
from ressl.memory import local_processes, ram

LOOKED_AT = 1000  # samples whose names are compared
PIXELS = 64  # and of pictures in memory, those whose pixels are
NAMED = 20  # broken files that a process tells the others of


class Unread(ResslError):
    """A file that one process could read and another could not."""

    exit_code = 1  # a disk may have been away for a moment: a launcher may try again


def outline(source: Source) -> str:
    """A digest of how many pictures there are, their labels, and some names; not of where they lie."""
    hasher = hashlib.sha256(f"{len(source)}\n".encode())
    if source.labels is not None:
        hasher.update(source.labels.numpy().tobytes())
    spread = lambda most: np.linspace(0, len(source) - 1, min(most, len(source)), dtype=np.int64).tolist()
    for i in spread(LOOKED_AT):
        hasher.update(os.fsencode(os.path.basename(source.identify(i))) + b"\0")
    if isinstance(source, ArraySource):
        for i in spread(PIXELS):
            hasher.update(source.read(i).tobytes())
    return hasher.hexdigest()[:12]


def check_source(source: Source, team: Team) -> None:
    """Raise, on every process, that one of them has other pictures before it than rank 0."""
    first, *others = team.gather([len(source), outline(source)] if team.world > 1 else None)
    for rank, found in enumerate(others, 1):
        if found != first:
            more = f"{found[0]:,} of them, rank 0 {first[0]:,}" if found[0] != first[0] else "as many, but others"
            raise ResslError(
                f"rank {rank} sees other pictures than rank 0 ({more}); see that --data is the same for every process"
            )


def check_kept(loader: Loader, broken: Iterable[str], team: Team) -> None:
    """The same of what they kept of them: a file that only some could read, or pictures held in another way."""
    unread = {os.path.basename(path): path for path in sorted(broken)[:NAMED]}
    first, *others = team.gather([type(loader).__name__, loader.samples, unread])
    for rank, (kind, samples, missed) in enumerate(others, 1):
        if only := {*missed} ^ {*first[2]}:
            name = min(only)
            unable, able, path = (rank, 0, missed[name]) if name in missed else (0, rank, first[2][name])
            raise Unread(
                f"rank {unable} could not read {path}, rank {able} could; start again, or look at that machine's disk"
            )
        if (kind, samples) != (first[0], first[1]):
            raise Unread(
                f"rank {rank} holds {samples:,} pictures ({kind}) and rank 0 {first[1]:,} ({first[0]}); start again, "
                "and see that the machines have as much memory free"
            )


def may_all_hold(device: torch.device, team: Team) -> int:
    """Bytes of pictures, by the process with the least room; those of a machine share its memory."""
    here = may_be_held(device)
    if team.world > 1:
        here = min(here, ram() // 2 // local_processes())
    return -team.agree(-here)
