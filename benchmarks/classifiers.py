"""One backbone, several linear classifiers: `python benchmarks/classifiers.py RUN [--into results] [--data PLACE]`.

The recipe's own first; then in the other precision, with gentler steps, and by a cosine, as later papers evaluate ReSSL
(MSVQ and MNN: from 1, without steps). What is there already is not measured again; the record holds them all, and
docs/RESULTS.md shows them beside each other.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ressl import console
from ressl.errors import ResslError
from ressl.evaluating import evaluate
from ressl.reproduce.ledger import write_record
from ressl.runs import Run

# (protocol, precision, settings)
WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("linear", "auto", {}),
    ("linear", "fp32", {}),
    ("linear-step", "auto", {"lr": 10.0}),
    ("linear-step", "auto", {"lr": 3.0}),
    ("linear-cosine", "auto", {"lr": 1.0}),
    ("linear-cosine", "auto", {}),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--into", type=Path, default=Path("results"))
    parser.add_argument("--data", help="where the run's data lies")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, help="of each classifier, other than the protocol's")
    options = parser.parse_args()
    fewer = {} if options.epochs is None else {"epochs": options.epochs}
    try:
        run = Run.open(options.run)
        for protocol, precision, settings in WAYS:
            with console.display() as shown:
                found = evaluate(
                    run, protocol, precision=precision, data=options.data, device=options.device, display=shown,
                    **settings, **fewer,
                )  # fmt: skip
            told = ", ".join(f"{key} {value}" for key, value in found["changed"].items())
            numbers = f"last {found['last']:.2f}, best {found['best']:.2f}, {found['seconds']:.1f} s"
            print(f"{protocol:14} {found['precision']:9} {told or 'its own':32} {numbers}", flush=True)
        print(write_record(run, options.into))
    except ResslError as error:
        parser.exit(2, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
