"""What a run writes down while it trains: ``metrics.jsonl`` and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ressl.checkpoints import DiskFull
from ressl.files import NotRegular, open_regular, write_atomically

_LINE = 1 << 20  # bytes; ours have hundreds
_ENDLESS = 64  # longer lines, or pieces of one, before the rest is not looked at


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl``; a last line cut by a crash, or one that is not ours, is left out."""
    rows, endless = [], 0
    # Any other error is raised: who takes a file that cannot be read for an empty one, writes over it.
    with contextlib.suppress(FileNotFoundError, NotRegular), open_regular(folder / "metrics.jsonl") as file:
        for line in iter(lambda: file.readline(_LINE), b""):
            endless += len(line) == _LINE
            if endless > _ENDLESS:
                break
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if _is_row(row):
                    rows.append(row)
    return rows


def _is_row(row: Any) -> bool:
    """Whether it is one of ours: numbers by name, and at which step."""
    if not isinstance(row, dict) or type(row.get("step")) is not int or "epoch" not in row:
        return False
    return all(type(value) is float or (type(value) is int and abs(value) < 2**63) for value in row.values())


class Records:
    """Appends rows. On resume, what came after the checkpoint is taken back first, so that each step is told once.

    ``from_step`` is the checkpoint's, ``rows`` how many it had seen written, where it knows.
    """

    def __init__(self, folder: Path, from_step: int = 0, rows: int | None = None) -> None:
        self.path = folder / "metrics.jsonl"
        told = rows if type(rows) is int and rows >= 0 else None  # it comes from a file
        kept = [row for row in read_metrics(folder) if row["step"] <= from_step][:told]
        self._rows = len(kept)
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        self._board = _tensorboard(folder / "tensorboard", from_step)

    def write(self, row: dict[str, Any]) -> None:
        with self._told():
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            self._rows += 1
            if self._board is not None:
                for name, value in row.items():
                    if name not in ("step", "epoch"):
                        self._board.add_scalar(name, value, row["step"])

    def sync(self) -> int:
        """Put all rows on the disk, as before a checkpoint that counts on them; returns how many there are."""
        with self._told():
            os.fsync(self._file.fileno())
        return self._rows

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A disk that is full, or no longer there, in a sentence."""
        try:
            yield
        except OSError as error:
            raise DiskFull(
                f"{self.path} cannot be written: {error.strerror}; make room on the disk, then resume"
            ) from error

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
