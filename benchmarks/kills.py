"""A run that is killed again and again: `python benchmarks/kills.py --out RUN [--into results] cifar10 --seed 1`.

Starts `ressl pretrain` with the words given, kills it (SIGKILL: no warning, no last words) once it has logged each of
some random steps, and resumes it until it is done. Records how many steps were lost and what came of the run. With
`--twin` an undisturbed run is made beside it and every logged loss compared; with `--signal TERM` it is asked to stop.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ressl.bench.suite import write
from ressl.engine.records import read_metrics
from ressl.reproduce.ledger import record, write_record
from ressl.runs import Run

COMMAND = [sys.executable, "-m", "ressl"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--steps", type=int, default=39_000, help="of the whole run (default: CIFAR-10's 39,000)")
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    parser.add_argument("--twin", action="store_true", help="also an undisturbed run, in RUN-twin, to compare with")
    parser.add_argument("--then", nargs="*", default=[], metavar="P", help="protocols to evaluate in the end")
    parser.add_argument("--out", type=Path, required=True, help="the run folder")
    parser.add_argument("--into", type=Path, default=Path("results"))
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for ressl pretrain")
    options = parser.parse_args()
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    twin = options.out.with_name(options.out.name + "-twin") if options.twin else None
    if twin is not None:
        subprocess.run([*COMMAND, "pretrain", *options.words, "--out", str(twin)], check=True)
    signum = signal.Signals[f"SIG{options.signal}"]
    moments = sorted(random.sample(range(max(1, options.steps // 50), options.steps), options.kills))
    stops = disturbed(options.out, options.words, moments, signum)
    if options.then:
        subprocess.run([*COMMAND, "evaluate", str(options.out), "--protocol", *options.then], check=True)
    run = Run.open(options.out)
    made = record(run)
    found: dict[str, Any] = {"schema": 1, "kind": "kills", "started": started, "signal": options.signal}
    found |= {"stops": stops, "lost": sum(stop["logged"] - stop["resumed"] for stop in stops)}
    found |= {"exact": "--exact" in options.words, "evaluations": made["evaluations"]}
    found |= {key: made[key] for key in ("name", "recipe", "seed", "steps", "environment")}
    found["knn"] = next((row["knn"] for row in reversed(run.metrics()) if "knn" in row), None)
    if twin is not None:
        found["twin"] = compared(run, Run.open(twin))
    print(f"{len(stops)} times, {found['lost']:,} of {made['steps']:,} steps lost: {write(found, options.into)}")
    if options.then:
        print(write_record(run, options.into))
    return 0


def disturbed(out: Path, words: list[str], moments: list[int], signum: signal.Signals) -> list[dict[str, Any]]:
    """Run, and end it once each of ``moments`` is logged; what was logged then, and where it could go on."""
    stops = []
    for moment in [*moments, None]:
        begun = (out / "recipe.json").exists()
        start = time.monotonic()
        run = subprocess.Popen([*COMMAND, "pretrain", *(["--resume"] if begun else words), "--out", str(out)])
        while moment is not None and run.poll() is None and last_step(out) < moment:
            time.sleep(0.05)
        if moment is not None and run.poll() is None:
            run.send_signal(signum)
        code, logged = run.wait(), last_step(out)
        ended = -signum if signum == signal.SIGKILL else 128 + signum
        if code not in (0, ended):
            raise SystemExit(code)
        if code == ended:
            stops.append({"logged": logged, "resumed": kept_step(out), "seconds": round(time.monotonic() - start, 1)})
            print(f"ended after the log of step {logged}, goes on after step {stops[-1]['resumed']}", flush=True)
    return stops


def last_step(out: Path) -> int:
    """In the log."""
    return max((row["step"] for row in read_metrics(out)), default=0)


def kept_step(out: Path) -> int:
    """Of the newest checkpoint."""
    paths = Run.open(out).checkpoints.paths()
    return int(paths[-1].stem.removeprefix("step-")) if paths else 0


def compared(run: Run, twin: Run) -> dict[str, Any]:
    """Losses that are equal to the bit, and the largest difference, relative to the twin's."""
    mine, other = ({row["step"]: row["loss"] for row in r.metrics() if "loss" in row} for r in (run, twin))
    if mine.keys() != other.keys():
        raise SystemExit("the two runs have not logged the same steps")
    apart = max((abs(mine[step] - loss) / abs(loss) for step, loss in other.items()), default=0.0)
    equal = sum(mine[step] == loss for step, loss in other.items())
    knn = next((row["knn"] for row in reversed(twin.metrics()) if "knn" in row), None)
    return {"losses": len(other), "equal": equal, "largest_difference": apart, "knn": knn}


if __name__ == "__main__":
    raise SystemExit(main())
