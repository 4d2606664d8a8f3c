"""How much room there is for pictures."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_DEVICE_SHARE, _RAM_SHARE = 0.40, 0.25
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def ram() -> int:
    """Bytes of memory this process may count on: the machine's, or its container's where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def room(device: torch.device) -> int:
    """Bytes that resident pictures may take there, leaving the rest to the training."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _DEVICE_SHARE)
    return int(ram() * _RAM_SHARE)


def shown_bytes(size: int) -> str:
    """For people: '154 MB'."""
    return (
        f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"
    )
