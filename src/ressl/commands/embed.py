"""ressl embed."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from typing import Any

from ressl import console
from ressl.commands.shared import natural, positive
from ressl.data.decode import shown
from ressl.embedding import embed


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "The features of any number of pictures, as N x D float32 (.npy, with .paths.txt beside it) or as rows of\n"
        "path and embedding (.parquet). Memory stays bounded; the same command again goes on after a stop."
    )
    parser.epilog = (
        "examples:\n  ressl embed runs/x photos/ -o features.npy\n  ressl embed model.safetensors list.txt -o f.parquet"
    )
    parser.add_argument("model", help="run folder, exported model, or published ResNet (.pth)")
    parser.add_argument("images", help="folder, .txt with a path per line, .npy or .npz array, or one picture")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="FILE.npy or FILE.parquet")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    parser.add_argument("--workers", help="threads that decode (default: one per core); no effect on the result")
    parser.add_argument("--batch-size", default="256", help="pictures per forward (default: 256)")
    parser.add_argument("--quiet", action="store_true", help="say nothing")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    workers = None if options.workers is None else natural("--workers", options.workers)
    with console.display(options.quiet) as display:
        found = embed(
            options.model,
            options.images,
            options.out,
            device=options.device,
            precision=options.precision,
            workers=workers,
            batch_size=positive("--batch-size", options.batch_size),
            display=display,
        )
    if not options.quiet:
        what = f"{len(found.paths):,} pictures as {found.dim} numbers each"
        print(f"{what} in {shown(options.out)} ({found.seconds:.1f} s after start-up)")
        out, model = shlex.quote(options.out), shlex.quote(options.model)
        print(f"next: ressl search {shown(out)} PICTURE --model {shown(model)}")
    return 0
