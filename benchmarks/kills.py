"""A run that is killed again and again: `python benchmarks/kills.py --kills 5 --out RUN cifar10 --seed 1`.

Starts `ressl pretrain` with the words after `--out RUN`, kills it (SIGKILL: no warning, no last words) once it has
logged each of some random steps, and resumes it until it is done. Evaluate and record the run as any other.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path


def last_step(out: Path) -> int:
    log = out / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    whole = [line for line in lines if line.endswith("}")]  # a killed run may leave half a line
    return int(json.loads(whole[-1]).get("step", 0)) if whole else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--steps", type=int, default=39_000, help="of the whole run (default: CIFAR-10's 39,000)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for ressl pretrain")
    options = parser.parse_args()
    moments = sorted(random.sample(range(options.steps // 50, options.steps), options.kills))
    for moment in [*moments, None]:
        begun = (options.out / "recipe.json").exists()
        words = ["--resume"] if begun else options.words
        start = time.monotonic()
        run = subprocess.Popen([sys.executable, "-m", "ressl", "pretrain", *words, "--out", str(options.out)])
        while moment is not None and run.poll() is None and last_step(options.out) < moment:
            time.sleep(0.05)
        if moment is not None and run.poll() is None:
            run.kill()
        code, logged = run.wait(), last_step(options.out)
        print(f"{time.monotonic() - start:.1f} s, ended with {code} after the log of step {logged}", flush=True)
        if code not in (0, -9):
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
