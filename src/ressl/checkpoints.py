"""Checkpoints that are whole or not there, notice their own damage, and cannot run code.

The file is an ordinary safetensors file. Its metadata holds the facts as JSON and the SHA-256 of the whole file taken
with the digest's own 64 characters set to zero, so that a flip of any bit, in the header too, is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from ressl.errors import ResslError, printable
from ressl.files import open_regular, sweep, write_atomically
from ressl.memory import ram

FORMAT = "ressl-checkpoint-1"
_VERSION = re.compile(r"ressl-checkpoint-\d{1,9}")
_BLANK = "0" * 64
_KEY = b'"sha256":"'
KEEP = 2  # the newest checkpoints that stay
_HEADER_LIMIT = 8 << 20  # bytes; a ResNet-50's header has 0.1 MB, and a hostile one may take 20 times its size to read
_NAME = re.compile(r"step-(\d{8,18})\.safetensors")
_WARN_BELOW = 3  # times a checkpoint's size left on the disk
_LEARNED = ("method.", "optimiser.")  # the tensors that must be finite; logs may be what they are
_ROW = ("step", "epoch", "images_per_second")  # what a row of metrics.jsonl says besides the logs
_USUAL = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first of ``tensors`` that holds NaN or Inf.

    One pass over each, and one wait for the device: what is found of them is looked at together.
    """
    looked = {n: t.detach() for n, t in tensors.items() if t.numel() and (t.is_floating_point() or t.is_complex())}
    usual = [name for name, tensor in looked.items() if tensor.dtype in _USUAL]
    good = {name: _finite(tensor) for name, tensor in looked.items() if tensor.dtype not in _USUAL}
    if usual:  # by their ends, which takes no copy: a memory of all pictures may fill half of the card
        ends = torch.stack([end for name in usual for end in looked[name].aminmax()])
        good |= zip(usual, ends.isfinite().view(-1, 2).all(1).tolist(), strict=True)
    return next((name for name in looked if not good[name]), None)


def _finite(tensor: Tensor) -> bool:
    try:
        return bool(tensor.isfinite().all())
    except NotImplementedError:  # of a kind that torch holds but cannot look at, and no run of ours writes
        return False


class DamagedCheckpoint(ResslError):
    """A checkpoint that cannot be trusted: cut, changed or not ours."""


class OtherVersion(ResslError):
    """A checkpoint in a format that this version does not read. It is not damaged: nothing may be put in its place."""


class DiskFull(ResslError):
    """A checkpoint that would not fit, or did not."""


class Place(NamedTuple):
    step: int
    drained: int  # steps whose logs were written down
    logs: list[str]  # names of what is logged


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below ``prefix``, without it."""
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}

    def spoilt(self) -> str | None:
        """The name of a weight, statistic or optimiser state that is not finite."""
        return not_finite({name: tensor for name, tensor in self.tensors.items() if name.startswith(_LEARNED)})

    def place(self, total_steps: int) -> Place:
        """Where in the run it was written; anybody may have written it, so nothing is taken for granted."""
        step, drained, logs = (self.facts.get(key) for key in ("step", "drained", "logs"))
        ring = self.tensors.get("engine.ring")
        if (
            (type(step) is int and type(drained) is int and 0 <= drained <= step <= total_steps)
            and (isinstance(logs, list) and _are_names(logs))
            and (ring is not None and ring.ndim == 2 and len(ring) > 0 and ring.is_floating_point())
            and (ring.shape[1] == 0 or (ring.shape[1] == len(logs) and {"loss", "lr"} <= set(logs)))
        ):
            return Place(step, drained, logs)
        raise DamagedCheckpoint("the checkpoint's place in the run or its logs make no sense; it is not of this run")

    @property
    def size(self) -> int:
        """Bytes on disk, to within the header."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values()) + (256 << 10)


def _are_names(logs: list[Any]) -> bool:
    """Whether rows can be written with them: texts, none twice, none of those that every row has."""
    if not all(isinstance(name, str) and name.isprintable() for name in logs):
        return False
    return len({*logs, *_ROW}) == len(logs) + len(_ROW)


def encode(checkpoint: Checkpoint) -> bytes:
    """The file as it is written."""
    tensors = {name: t.detach().to("cpu").contiguous() for name, t in checkpoint.tensors.items()}
    metadata = {"format": FORMAT, "facts": json.dumps(checkpoint.facts), "sha256": _BLANK}
    data = safetensors.torch.save(tensors, metadata)
    place = data.index(_KEY + _BLANK.encode()) + len(_KEY)
    digest = hashlib.sha256(data).hexdigest().encode()
    return b"".join((data[:place], digest, data[place + 64 :]))


def save(path: Path, checkpoint: Checkpoint) -> None:
    write_atomically(path, encode(checkpoint))


def load(path: Path) -> Checkpoint:
    """A training checkpoint, verified; raises :class:`DamagedCheckpoint` with the reason."""
    found = load_tensors(path)
    if type(found.facts.get("step")) is not int or found.facts["step"] < 0:
        raise DamagedCheckpoint(f"the checkpoint {path} does not say of which step it is")
    return found


def load_tensors(path: Path) -> Checkpoint:
    """Any tensors and facts that :func:`save` wrote, verified: a checkpoint, or features that were kept."""
    data, end = _read(Path(path))
    metadata = _header(data[8:end], path).get("__metadata__")
    if not isinstance(metadata, dict) or not _VERSION.fullmatch(str(metadata.get("format"))):
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint")
    place = data.find(_KEY, 8, end) + len(_KEY)
    hasher = hashlib.sha256()
    view = memoryview(data)
    for piece in (view[:place], _BLANK.encode(), view[place + 64 :]):
        hasher.update(piece)
    if hasher.hexdigest().encode() != data[place : place + 64]:
        raise DamagedCheckpoint(f"the checkpoint {path} is damaged: its checksum does not match")
    if (version := metadata["format"]) != FORMAT:
        raise OtherVersion(f"the checkpoint {path} is of another version of ressl ({version}); use that one to go on")
    # A right checksum is no proof of good will: anybody can compute one.
    try:
        tensors, facts = safetensors.torch.load(data), json.loads(metadata["facts"])
    except Exception as error:
        raise DamagedCheckpoint(f"the checkpoint {path} cannot be read: {_first(error)}") from error
    if not isinstance(facts, dict):
        raise DamagedCheckpoint(f"the checkpoint {path} has no facts")
    return Checkpoint(tensors, facts)


def _read(path: Path) -> tuple[bytes, int]:
    """The file and where its header ends. Sizes are looked at before that much memory is asked for."""
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            start = file.read(8)
            end = 8 + int.from_bytes(start, "little")
            if len(start) < 8 or end > found.st_size or end > _HEADER_LIMIT:
                raise DamagedCheckpoint(f"{path} is not a ressl checkpoint, or it is cut short")
            if found.st_size > ram():
                raise DamagedCheckpoint(f"{path} is larger than the memory here ({found.st_size / 1e9:,.1f} GB)")
            return start + file.read(), end
    except OSError as error:
        raise DamagedCheckpoint(f"cannot read the checkpoint {path}: {error.strerror}") from error


def _header(data: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint, or its header is damaged") from error
    if not isinstance(header, dict):
        raise DamagedCheckpoint(f"{path} is not a ressl checkpoint")
    return header


def _first(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)[:200]


def _step(path: Path) -> int:
    """As the file's name says."""
    return int(path.stem.removeprefix("step-"))


class CheckpointFolder:
    """``step-00000123.safetensors`` files: the newest good one counts, the last few are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[str] = []  # what load_latest had to pass over
        self._useless: list[Path] = []  # those files; they do not count among the ones kept

    def paths(self) -> list[Path]:
        """Oldest first."""
        try:
            return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), key=_step)
        except OSError:
            return []

    @property
    def last_step(self) -> int | None:
        """The step of the newest one, good or not."""
        paths = self.paths()
        return _step(paths[-1]) if paths else None

    @property
    def last(self) -> str:
        """The newest one in words."""
        usable = [path for path in self.paths() if path not in self._useless]
        return f"the last checkpoint is {usable[-1]}" if usable else "no checkpoint was written yet"

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        path = self.folder / f"step-{step:08d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, checkpoint)
        except OSError as error:
            raise DiskFull(
                f"the checkpoint after step {step} cannot be written: {error.strerror}; {self.last}; make room on the "
                "disk, then resume"
            ) from error
        self._useless = [old for old in self._useless if old != path]
        for old in [*self._useless, *[p for p in self.paths() if p not in self._useless][:-KEEP]]:
            with contextlib.suppress(OSError):
                old.unlink(missing_ok=True)
        self._useless = [old for old in self._useless if os.path.lexists(old)]  # a folder, say
        sweep(self.folder)
        return path

    def look_at_disk(self, size: int) -> str | None:
        """Before ``size`` bytes are written: raises :class:`DiskFull` if they do not fit, warns if it gets tight."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
        except OSError:  # the write itself will say what is wrong
            return None
        where = f"the disk of {self.folder} has {free / 1e6:,.1f} MB left and a checkpoint takes {size / 1e6:,.1f} MB"
        if free < size:
            raise DiskFull(f"{where}; {self.last}; make room, then resume")
        return f"{where}; make room before it is full" if free < _WARN_BELOW * size else None

    def load_latest(self) -> Checkpoint:
        """The newest that can be used; ``damaged`` says which were passed over, and why."""
        self.damaged, self._useless = [], []
        for path in reversed(self.paths()):
            try:
                found = load(path)
                if found.facts["step"] != _step(path):  # as the newest by name it would hide every later one
                    step = found.facts["step"]
                    raise DamagedCheckpoint(f"the checkpoint {path} is of step {step}, not of that in its name")
                if name := found.spoilt():  # nothing good can come of it
                    raise DamagedCheckpoint(f"the checkpoint {path} is damaged: its {printable(name)} is not finite")
                return found
            except DamagedCheckpoint as error:
                if not os.path.lexists(path):  # who trains has saved meanwhile, and let go of it
                    return self.load_latest()
                self.damaged.append(str(error))
                self._useless.append(path)
        if self.damaged:
            raise ResslError(f"no checkpoint in {self.folder} can be used: {'; '.join(self.damaged)}")
        raise ResslError(f"there is no checkpoint in {self.folder}")
