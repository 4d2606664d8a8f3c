"""ressl launch."""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import traceback
from argparse import ArgumentParser, Namespace
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from ressl.commands.shared import natural, positive
from ressl.engine.signals import SIGNALS
from ressl.errors import ResslError

PRELOADED = (
    *("ressl.commands.pretrain", "ressl.commands.evaluate", "ressl.cli"),
    *("ressl.nn.resnet", "torch._dynamo", "torch.nn.parallel", "torch.utils.tensorboard"),
)
MISTAKE = "RESSL_MISTAKE_FILE"  # written by a process that failed by a mistake of the user's: no use in trying again
SHARED = ("pretrain", "evaluate")  # the commands that know of several processes


def add_options(parser: ArgumentParser) -> None:
    parser.usage = "ressl launch [options] -- COMMAND ..."
    parser.description = (
        "Run a command as several processes that share each batch, one per GPU (or several on a CPU), by torchrun\n"
        "with the settings that recover from a lost process: it is started again and goes on from the last checkpoint."
    )
    parser.epilog = (
        "examples:\n"
        "  ressl launch --processes 8 -- pretrain imagenet-r50 --data imagenet/ --out runs/r50\n"
        "  ressl launch --processes 8 --nodes 4 --at node0:29400 -- pretrain ...    the same line on each of 4 nodes"
    )
    parser.add_argument("--processes", metavar="N", help="on this machine (default: one per GPU, or 2 without)")
    parser.add_argument("--max-restarts", metavar="N", default="3", help="after a lost process (default: 3)")
    parser.add_argument("--nodes", metavar="N", default="1", help="machines; run the same line on each (default: 1)")
    parser.add_argument("--at", metavar="HOST:PORT", help="where the machines meet: the first one's address")
    parser.add_argument(
        "--job", metavar="NAME", default="ressl", help="a name that the machines share (default: ressl)"
    )


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if not options.inner:
        raise ResslError("say what to run after '--', for example: ressl launch --processes 2 -- pretrain demo")
    if options.inner[0] not in SHARED:
        raise ResslError(f"'{options.inner[0]}' runs in one process; launch takes {' and '.join(SHARED)}")
    nodes = positive("--nodes", options.nodes)
    if nodes > 1 and options.at is None:
        raise ResslError("several nodes need a place to meet: --at HOST:PORT, the same on each of them")
    restarts = natural("--max-restarts", options.max_restarts)
    at = "localhost:0" if options.at is None else _meeting_place(options.at)
    processes = _default_processes() if options.processes is None else positive("--processes", options.processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    # torchrun keeps one store for all attempts, in which a restarted process would find the addresses of dead ones.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed.launcher.api import LaunchConfig

    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=processes,
        run_id=options.job,
        rdzv_backend="c10d",
        rdzv_endpoint=at,
        max_restarts=restarts,
        start_method="forkserver",
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ[MISTAKE] = str(Path(folder) / "mistake")
        _start_forkserver()
        return _elastic(config, options.inner)


def _meeting_place(at: str) -> str:
    """HOST:PORT, of a host that has an address: torch would look for it for minutes."""
    host, _, port = at.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 2**16):
        raise ResslError(f"--at must be HOST:PORT, for example node0:29400, not '{at}'")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except (OSError, ValueError):
        raise ResslError(f"--at: this machine knows no address of '{host}'; use one that every node knows") from None
    return at


def _default_processes() -> int:
    import torch

    return torch.cuda.device_count() or 2


def _start_forkserver() -> None:
    """The processes are forked from one that has imported everything already: eight of them start in the time of one,
    and a restart, which would otherwise be mostly imports, takes a second.

    It and multiprocessing's tracker must not die of a signal to the whole group: its children are still saving, and its
    death would reach them as another signal. Both are born with the signals held back; ``work`` lets them through.
    """
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    for start in (resource_tracker.ensure_running, forkserver.ensure_running):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # again: the tracker's start lifts it for some of them
        start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _elastic(config: Any, arguments: list[str]) -> int:
    """torchrun's agent in this process, its end as an exit code and not as a traceback."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    logging.disable()  # what they log, our processes say better
    try:
        elastic_launch(config, work)(arguments)
    except SignalException as error:
        return 128 + int(error.sigval)
    except RendezvousError as error:
        first = str(error).split("\n")[0].rstrip(".")
        raise ResslError(
            f"the machines did not meet at {config.rdzv_endpoint}: {first}; check that the line runs on each of them, "
            "and that the first one can be reached there"
        ) from None
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        with contextlib.suppress(OSError, ValueError):  # those of a later attempt, who only left, came after that one
            rank = int(Path(os.environ[MISTAKE]).read_text())
        what = f"was ended by signal {-failure.exitcode}" if failure.exitcode < 0 else f"left with {failure.exitcode}"
        print(f"ressl: rank {rank} {what}; the job has ended", file=sys.stderr)
        return 128 - failure.exitcode if failure.exitcode < 0 else int(failure.exitcode)
    return 0


def work(arguments: list[str]) -> None:
    """One of the processes."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Loader workers are forked from this process, and end with it. By the method that started us they would come from
    # another forkserver, whose processes outlive a killed rank. No worker ever touches a device: forking is safe.
    multiprocessing.set_start_method("fork", force=True)
    mistake = Path(os.environ[MISTAKE])
    if mistake.exists():
        sys.exit(ResslError.exit_code)
    command = importlib.import_module("ressl.cli")  # nobody imports the command line but who starts it
    try:
        code: int = command.main(arguments)
    except Exception:  # a mistake of ours; torch would put it into a file that nobody looks at
        traceback.print_exc()
        sys.exit(1)
    if code == ResslError.exit_code:
        with contextlib.suppress(FileExistsError), mistake.open("x") as file:
            file.write(os.environ["RANK"])
    sys.exit(code)
