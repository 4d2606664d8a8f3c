"""What the bar says of work that comes in several pieces."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress

from ressl.console import Bar


def test_a_second_piece_of_as_many_steps_has_a_clock_of_its_own() -> None:
    now = [0.0]
    progress = Progress(console=Console(file=io.StringIO()), get_time=lambda: now[0], auto_refresh=False)
    bar = Bar(progress)
    task = progress.tasks[0]
    for _ in range(2):
        for done in range(1, 13):
            now[0] += 1.0
            bar.progress(done, 12, {})
            if done == 6:
                assert not task.finished
                assert task.time_remaining is not None
                assert 5 <= task.time_remaining <= 7
        assert task.finished
    assert task.finished_time is not None
    assert task.finished_time <= 12  # of the second piece alone


def test_work_within_a_run_does_not_stop_its_clock() -> None:
    now = [0.0]
    progress = Progress(console=Console(file=io.StringIO()), get_time=lambda: now[0], auto_refresh=False)
    bar = Bar(progress)
    for done in range(1, 6):
        now[0] += 1.0
        bar.progress(done, 12, {})
        bar.busy("kNN", done, 12)
    assert progress.tasks[0].elapsed == 5.0
