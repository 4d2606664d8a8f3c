"""From nothing to a number: `python benchmarks/cold.py --out RUN [--into results] cifar10 --seed 1`.

Times `ressl pretrain` with the words given and `--then linear`, in an empty cache of compiled kernels, from the start
of the process to its end, and records that with a timeline; the run is recorded beside it as any other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ressl.bench.suite import write
from ressl.reproduce.ledger import record, write_record
from ressl.runs import Run

KEPT = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the run folder")
    parser.add_argument("--into", type=Path, default=Path("results"))
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for ressl pretrain")
    options = parser.parse_args()
    command = ["pretrain", *options.words, "--out", str(options.out), "--then", "linear"]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with tempfile.TemporaryDirectory() as empty:
        places = {key: value for key, value in os.environ.items() if key not in KEPT} | {"XDG_CACHE_HOME": empty}
        start, told = time.monotonic(), list[tuple[float, str]]()
        words = [sys.executable, "-u", "-m", "ressl", *command]
        with subprocess.Popen(words, env=places, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                told.append((round(time.monotonic() - start, 1), line.rstrip()))
                print(f"{told[-1][0]:7.1f} s  {told[-1][1]}", flush=True)
        seconds = round(time.monotonic() - start, 1)
    if running.returncode:
        return running.returncode
    run = Run.open(options.out)
    made = record(run)
    linear = {key: made["evaluations"]["linear"][key] for key in ("last", "best", "seconds", "start_seconds")}
    found = {"schema": 1, "kind": "cold", "started": started, "seconds": seconds, "linear": linear}
    # What it said and when: how long it took to start, and what it did after the last step.
    short = lambda text: text.replace(str(options.out.resolve()), options.out.name)  # nobody else has that folder
    kept = [line for line in told if line[1] and not line[1].startswith(("step", "┏", "┃", "┡", "└"))]
    found["timeline"] = [[at, short(text)] for at, text in kept]
    found |= {"training_seconds": made["seconds"], "pictures": made["steps"] * made["recipe"]["batch_size"]}
    found |= {key: made[key] for key in ("name", "images_per_second", "recipe", "seed", "environment")}
    print(f"{seconds:.1f} s from nothing to {linear['last']:.2f} %: {write(found, options.into)}")
    print(write_record(run, options.into))
    print(json.dumps(linear))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
