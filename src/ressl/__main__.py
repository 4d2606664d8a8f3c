"""``ressl`` and ``python -m ressl``, which is also what torchrun starts."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

from ressl.cli import main


def leave(code: int) -> NoReturn:
    """End this process. All is said and written, and to take the libraries apart piece by piece would take seconds."""
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does it: idle pools are told, then threads joined
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody listens any more
            stream.flush()
    os._exit(code)


def run() -> NoReturn:
    leave(main())


if __name__ == "__main__":
    run()
