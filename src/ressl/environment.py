"""What a result was made with: versions, hardware, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ressl import __version__

FROM_SOURCE = "not installed"  # what earlier records say of a program that is run from its source


def environment(device: torch.device) -> dict[str, Any]:
    """Facts that stand beside every measured number."""
    facts: dict[str, Any] = {
        "ressl": _version("ressl") or f"{__version__} from source",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "system": platform.system(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    commit = _commit()
    return facts | ({"commit": commit} if commit else {})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the checkout this package is imported from, if it is one ("+" marks uncommitted changes)."""
    if os.environ.get("RESSL_COMMIT"):  # for installs that were copied without their repository
        return os.environ["RESSL_COMMIT"]
    here = Path(__file__).resolve().parent
    try:
        ask = lambda *words: subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        return ask("rev-parse", "--short=12", "HEAD") + ("+" if ask("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
