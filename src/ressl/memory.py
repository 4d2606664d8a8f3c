"""How much room there is for pictures, and what must not be let in."""

from __future__ import annotations

import os
import zipfile
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


def local_processes() -> int:
    """How many of this job share the machine, as their launcher says."""
    value = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or "1"
    return max(1, int(value)) if value.isdigit() else 1


def room(device: torch.device) -> int:
    """Bytes that resident pictures of one process may take there, leaving the rest to the training."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _DEVICE_SHARE)
    return int(ram() * _RAM_SHARE / local_processes())


def overfull(path: str | Path) -> str | None:
    """Why a zip must not be opened, as PyTorch's files are; None where it is as large as it looks, or no zip.

    A few compressed bytes can become any number, and so can entries that lie over one another.
    """
    with open(path, "rb") as file:
        claims = file.read(4) == b"PK\x03\x04"  # by which PyTorch knows one
    if not claims and not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return "it is no whole zip"
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return "its entries are compressed, which those of PyTorch never are"
    size = sum(entry.file_size for entry in entries)
    if size > os.path.getsize(path):
        return f"its entries claim {shown_bytes(size)}, more than the file has"
    return f"it takes {shown_bytes(size)}, more than half of the memory here" if size > ram() // 2 else None


def shown_bytes(size: int) -> str:
    """For people: '154 MB'."""
    return (
        f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"
    )
