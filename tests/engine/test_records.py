"""metrics.jsonl and TensorBoard: each step told once, whatever happened in between."""

from __future__ import annotations

import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ressl.engine.records import Records, read_metrics


def rows(*steps: int) -> list[dict[str, float]]:
    return [{"step": s, "epoch": s / 4, "loss": 10.0 / s} for s in steps]


def write(folder: Path, from_step: int, *steps: int) -> None:
    records = Records(folder, from_step)
    for row in rows(*steps):
        records.write(row)
    records.close()


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 3)
    assert read_metrics(tmp_path) == rows(1, 2, 3)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == rows(1, 2, 3)


def test_resuming_takes_later_rows_back(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 3, 4)
    write(tmp_path, 2, 3, 4, 5)
    assert read_metrics(tmp_path) == rows(1, 2, 3, 4, 5)


def test_a_new_beginning_takes_all_rows_back(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    write(tmp_path, 0, 1)
    assert read_metrics(tmp_path) == rows(1)


def test_a_cut_last_line_is_dropped_at_any_length(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 3)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    second = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for length in range(second, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert read_metrics(tmp_path) == (rows(1, 2) if length < len(whole) - 1 else rows(1, 2, 3)), length
    path.write_bytes(whole[: second + 9])
    write(tmp_path, 2, 3)  # and the next row does not stick to its rest
    assert read_metrics(tmp_path) == rows(1, 2, 3)


def test_rows_are_on_disk_at_once(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write(rows(1)[0])
    assert read_metrics(tmp_path) == rows(1)
    records.close()


def test_no_file_means_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_tensorboard_has_the_same_curve(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 3)
    write(tmp_path, 2, 3, 4)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == ["loss"]
    seen = {event.step: event.value for event in board.Scalars("loss")}
    assert sorted(seen) == [1, 2, 3, 4]
    assert all(abs(value - 10.0 / step) < 1e-5 for step, value in seen.items())
    assert len(board.Scalars("loss")) == 4  # step 3 was purged before it came again
