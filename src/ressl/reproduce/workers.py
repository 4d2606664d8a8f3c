"""Several pieces of work at once, each in a process of its own, all of which stop together and tidily."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from ressl.engine.signals import Interrupted, Terminated, tidy_exit
from ressl.errors import ResslError

Work = TypeVar("Work")
PATIENCE = 120.0  # seconds for a worker to save and leave

# Fresh processes: a forked one would inherit a CUDA context that it cannot use.
_SPAWN = multiprocessing.get_context("spawn")


class Lost(ResslError):
    """A worker ended without an answer."""


def at_once(
    do: Callable[[Work], dict[str, Any]], todo: Iterable[Work], workers: int
) -> Iterator[tuple[Work, dict[str, Any] | ResslError]]:
    """(work, what came of it or went wrong with it) as they are done.

    ``do`` is a function of a module, for other processes must find it. What is next is asked for when there is somebody
    to do it. A signal or a caller that goes away stops all workers, each as if it had got a SIGTERM of its own.
    """
    waiting = iter(todo)
    crew: dict[Connection, SpawnProcess] = {}
    busy: dict[Connection, Work] = {}

    def give(line: Connection | None = None) -> None:
        """The next piece to that worker, or to a new one."""
        for piece in waiting:
            if line is None:
                line, process = _hire(do)
                crew[line] = process
            busy[line] = piece
            line.send(piece)
            return

    try:
        for _ in range(workers):
            give()
        while busy:
            for line in wait(list(busy)):
                assert isinstance(line, Connection)
                done, result = busy.pop(line), _answer(line, crew[line])
                give(None if isinstance(result, Lost) else line)
                yield done, result
    finally:
        _stop(crew, busy)


def _hire(do: Callable[[Any], dict[str, Any]]) -> tuple[Connection, SpawnProcess]:
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_work, args=(do, there))
    with _deaf_to_ctrl_c():
        process.start()
    there.close()
    return here, process


def _work(do: Callable[[Any], dict[str, Any]], line: Connection) -> None:
    """The life of a worker: one piece after the other, until the line is cut or a signal comes."""
    with suppress(EOFError, OSError, Terminated, KeyboardInterrupt), tidy_exit():
        threading.Thread(target=_leave_with_the_parent, daemon=True).start()
        while True:
            piece = line.recv()
            try:
                line.send(do(piece))
            except (ResslError, OSError) as error:  # a full disk, too
                line.send(ResslError(str(error)))
            except Interrupted as stop:  # saved; and a Ctrl-C may reach us before it reaches who waits for an answer
                line.send(stop)
                return


def _leave_with_the_parent() -> None:
    """A parent that was killed could not ask us to stop, and whoever gives the command again would find us still at
    work, with the runs locked. What it would have sent we send ourselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _answer(line: Connection, process: SpawnProcess) -> dict[str, Any] | ResslError:
    try:
        result: dict[str, Any] | ResslError | Interrupted = line.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        return Lost(
            f"a worker was lost (exit code {process.exitcode}); go on with the same command, with fewer --jobs if "
            "memory ran out"
        )
    if isinstance(result, Interrupted):
        raise result
    return result


def _stop(crew: dict[Connection, SpawnProcess], busy: Container[Connection]) -> None:
    """Ask all to leave, and wait until they have saved. A second Ctrl-C does not wait."""
    try:
        for line, process in crew.items():
            if line in busy:
                process.terminate()
            line.close()  # an idle one leaves by itself
        for process in crew.values():
            process.join(PATIENCE)
    finally:
        for process in crew.values():
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What is started inside does not hear the terminal's Ctrl-C: we do, and pass it on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
