"""Checkpoints that are whole or not there, notice their own damage, and cannot run code.

The file is an ordinary safetensors file. Its metadata holds the facts as JSON and the SHA-256 of the whole file taken
with the digest's own 64 characters set to zero, so that a flip of any bit, in the header too, is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ressl.errors import ResslError

FORMAT = "ressl-checkpoint-1"
_BLANK = "0" * 64
_KEY = b'"sha256":"'
KEEP = 2  # the newest checkpoints that stay


class DamagedCheckpoint(ResslError):
    """A checkpoint that cannot be trusted: cut, changed or not ours."""


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below ``prefix``, without it."""
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def write_atomically(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder: after a crash the old file or the new one is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(path: Path, checkpoint: Checkpoint) -> None:
    tensors = {name: t.detach().to("cpu").contiguous() for name, t in checkpoint.tensors.items()}
    metadata = {"format": FORMAT, "facts": json.dumps(checkpoint.facts), "sha256": _BLANK}
    data = safetensors.torch.save(tensors, metadata)
    place = data.index(_KEY + _BLANK.encode()) + len(_KEY)
    digest = hashlib.sha256(data).hexdigest().encode()
    write_atomically(path, b"".join((data[:place], digest, data[place + 64 :])))


def load(path: Path) -> Checkpoint:
    """Read and verify; raises :class:`DamagedCheckpoint` with the reason."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ResslError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    header, end = _header(data, path)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint")
    place = data.find(_KEY, 8, end) + len(_KEY)
    hasher = hashlib.sha256()
    view = memoryview(data)
    for piece in (view[:place], _BLANK.encode(), view[place + 64 :]):
        hasher.update(piece)
    if hasher.hexdigest().encode() != data[place : place + 64]:
        raise DamagedCheckpoint(f"the checkpoint {path} is damaged: its checksum does not match")
    return Checkpoint(safetensors.torch.load(data), json.loads(metadata["facts"]))


def _header(data: bytes, path: Path) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint, or it is cut short")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint, or its header is damaged") from error
    if not isinstance(header, dict):
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint")
    return header, 8 + size


class CheckpointFolder:
    """``step-00000123.safetensors`` files: the newest good one counts, the last few are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[str] = []  # what load_latest had to pass over

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:08d}.safetensors"
        save(path, checkpoint)
        for old in self.paths()[:-KEEP]:
            old.unlink(missing_ok=True)
        for litter in self.folder.glob(".step-*.tmp"):  # of a process that was killed while it wrote
            litter.unlink(missing_ok=True)
        return path

    def load_latest(self) -> Checkpoint:
        for path in reversed(self.paths()):
            try:
                return load(path)
            except DamagedCheckpoint as error:
                self.damaged.append(str(error))
        if self.damaged:
            raise ResslError(f"no checkpoint in {self.folder} can be used: {'; '.join(self.damaged)}")
        raise ResslError(f"there is no checkpoint in {self.folder}")


def random_states(device: torch.device) -> dict[str, Tensor]:
    """torch's own generators. Nothing of ours draws from them, but a method of the user's may."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
