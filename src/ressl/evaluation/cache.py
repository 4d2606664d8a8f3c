"""Features that were taken once, kept on disk.

A file belongs to one backbone (by its weights), one set of pictures (by its bytes) and one way to prepare them. It is
written whole or not at all and carries its own checksum, as a checkpoint does; a damaged, foreign or outdated one is
made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ressl.checkpoints import Checkpoint, load_tensors, save
from ressl.errors import ResslError

LIMIT = 4 << 30  # bytes of features that are worth a file
_PIECE = 1 << 22


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hasher.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        for piece in _pieces(tensor.detach()):
            hasher.update(piece.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Rows in parts: pictures that are mapped from a file should not all be copied at once."""
    if tensor.ndim == 0 or tensor.numel() <= _PIECE:
        return (tensor.reshape(-1),)
    return tensor.split(max(1, _PIECE * len(tensor) // tensor.numel()))


class FeatureCache:
    """``<backbone>-<pictures and preparation>.safetensors`` files in a folder; those of older weights are removed."""

    def __init__(self, folder: Path, backbone: nn.Module) -> None:
        self.folder, self.backbone = folder, fingerprint(backbone.state_dict())

    def get(
        self, asked: Mapping[str, Any], make: Callable[[], dict[str, Tensor]], again: bool = False
    ) -> dict[str, Tensor]:
        """What ``make`` gives, from the file that answers the same question if there is one."""
        facts = {"backbone": self.backbone, **asked}
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        path = self.folder / f"{self.backbone[:16]}-{name}.safetensors"
        if not again and path.is_file():
            with contextlib.suppress(ResslError, OSError):  # damaged: made again below
                found = load_tensors(path)
                if found.facts == facts:
                    return found.tensors
        made = make()
        if sum(t.numel() * t.element_size() for t in made.values()) <= LIMIT:
            with contextlib.suppress(OSError):  # a full or read-only disk costs the file, not the result
                self.folder.mkdir(parents=True, exist_ok=True)
                for old in self.folder.glob("*.safetensors"):
                    if not old.name.startswith(self.backbone[:16]):
                        old.unlink(missing_ok=True)
                save(path, Checkpoint(made, facts))
        return made
