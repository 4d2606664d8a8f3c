"""What a run writes down while it trains: ``metrics.jsonl`` and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ressl.engine.checkpoint import write_atomically


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl``; a last line cut by a crash is left out."""
    rows = []
    with contextlib.suppress(FileNotFoundError), open(folder / "metrics.jsonl", "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    rows.append(row)
    return rows


class Records:
    """Appends rows. On resume, what came after the checkpoint is taken back first, so that each step is told once.

    ``from_step`` is the checkpoint's, ``rows`` how many it had seen written, where it knows.
    """

    def __init__(self, folder: Path, from_step: int = 0, rows: int | None = None) -> None:
        self.path = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(folder) if row["step"] <= from_step][:rows]
        self._rows = len(kept)
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        self._board = _tensorboard(folder / "tensorboard", from_step)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._rows += 1
        if self._board is not None:
            for name, value in row.items():
                if name not in ("step", "epoch"):
                    self._board.add_scalar(name, value, row["step"])

    def sync(self) -> int:
        """Put all rows on the disk, as before a checkpoint that counts on them; returns how many there are."""
        os.fsync(self._file.fileno())
        return self._rows

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, from_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # metrics.jsonl has everything; a machine without TensorBoard must still train
        return None
    return SummaryWriter(str(folder), purge_step=from_step + 1 if from_step else None)
