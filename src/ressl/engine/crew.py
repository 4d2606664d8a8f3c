"""Other processes of ours that work ahead, all of them copies of one that has imported what they need.

To import PyTorch and its compiler takes seconds, and ten processes that do it side by side get in each other's way, and
in that of the one they work for. So one of them does it, and becomes the others.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from typing import NoReturn

PATIENCE = 300.0  # seconds, more than what one of them does takes; then it is done by who asked for it
_parents: list[subprocess.Popen[bytes]] = []


class Member:
    """A process that waits for what it is told, does that, says that it is done, and ends.

    It has a pipe to hear, and one to say who it is and, in the end, that all went well.
    """

    def __init__(self, hears: int, says: int) -> None:
        self._hears, self._says, self._said = hears, says, b""
        self.returncode: int | None = None

    def tell(self, text: str) -> None:
        """All that it will hear. With nothing to do it ends."""
        with contextlib.suppress(OSError), os.fdopen(self._hears, "w") as pipe:  # it may be gone, which wait() tells
            pipe.write(text)
        self._hears = -1

    def wait(self, patience: float | None = None) -> int | None:
        """0 when all went well, 1 when not, None when after ``patience`` (in seconds) it still works."""
        end = None if patience is None else time.monotonic() + patience
        while self.returncode is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._says], [], [], left)[0]:
                return None
            new = os.read(self._says, 64)
            self._said += new
            if not new or self._said.endswith(b"done\n"):
                self._over(0 if new else 1)
        return self.returncode

    def end(self) -> None:
        """Now, whatever it does."""
        if self._hears >= 0:
            self.tell("")  # enough for one that is not born yet
        if self.wait(0.0) is None and self._said:
            with contextlib.suppress(OSError):
                os.killpg(int(self._said.split()[0]), signal.SIGKILL)
            self.wait(1.0)
        if self.returncode is None:
            self._over(1)

    def _over(self, code: int) -> None:
        self.returncode = code
        os.close(self._says)


def start(modules: Sequence[str], **env: str) -> list[Member]:
    """One for each of ``modules``, which import what they need in ``ready`` and work in ``main``, told by stdin."""
    hears, says = [os.pipe() for _ in modules], [os.pipe() for _ in modules]
    theirs = [[there, word] for (there, _), (_, word) in zip(hears, says, strict=True)]
    plan = json.dumps([[module, *ends] for module, ends in zip(modules, theirs, strict=True)])
    # -P: a json.py in the user's folder is not ours. A session of its own: what ends us is ours to tell them.
    words, quiet = [sys.executable, "-P", "-m", "ressl.engine.crew", plan], subprocess.DEVNULL
    _parents[:] = [parent for parent in _parents if parent.poll() is None]
    _parents.append(
        subprocess.Popen(
            words, stdin=quiet, stdout=quiet, stderr=quiet, env=os.environ | env, start_new_session=True,
            pass_fds=[end for ends in theirs for end in ends],
        )
    )  # fmt: skip
    for ends in theirs:
        for end in ends:
            os.close(end)
    return [Member(ours, word) for (_, ours), (word, _) in zip(hears, says, strict=True)]


def finished(members: Sequence[Member], patience: float = PATIENCE) -> bool:
    """Whether all did well in that time; who still works is ended."""
    end = time.monotonic() + patience
    codes = {member.wait(max(0.0, end - time.monotonic())) for member in members}
    for member in members:
        member.end()
    return codes <= {0}


def main() -> None:
    plan = [(module, hears, says) for module, hears, says in json.loads(sys.argv[1])]
    ends = {end for _, *both in plan for end in both}
    for name, members in groupby(plan, lambda one: one[0]):
        module = importlib.import_module(name)
        module.ready()
        for _, hears, says in members:
            if not os.fork():
                for end in ends - {hears, says}:
                    os.close(end)
                _work(module, hears, says)
            for end in (hears, says):
                os.close(end)
                ends.remove(end)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _work(module: object, hears: int, says: int) -> NoReturn:
    """What a member does after its birth."""
    os.setsid()  # it ends together with the helpers it may have
    os.register_at_fork(after_in_child=lambda: os.close(says))  # who speaks for it is it alone
    os.write(says, f"{os.getpid()}\n".encode())
    os.dup2(hears, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    try:
        module.main()  # type: ignore[attr-defined]
        os.write(says, b"done\n")
    finally:
        atexit._run_exitfuncs()
        os._exit(0)


if __name__ == "__main__":
    main()
