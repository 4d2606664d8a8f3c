"""ressl export."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ressl.errors import printable
from ressl.export import FORMATS, export


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Write a run's backbone for other programs, with mean, std, input size and provenance, and print the lines\n"
        "that load it without this package."
    )
    parser.epilog = (
        "formats:\n"
        "  torchvision   state dict (.pth, and .card.json beside it) for torchvision's ResNets\n"
        "  timm          state dict (.safetensors) for timm's models\n"
        "  safetensors   weights with torchvision's or timm's names, all else in the file's metadata\n"
        "  onnx          ONNX, any batch size; pip install 'ressl[onnx]'\n"
        "  torch-export  a torch.export program (.pt2), any batch size\n"
        "  huggingface   a model folder: weights, config.json, model card\n\n"
        "examples:\n  ressl export runs/x --to timm\n  ressl export runs/x --to huggingface -o my-model"
    )
    parser.add_argument("run", help="run folder")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("-o", "--out", metavar="PATH", help="default: named after run and format, in RUN/export/")
    parser.add_argument("--licence", metavar="TEXT", help="of the weights, for the model card (default: none stated)")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    exported = export(options.run, options.to, options.out, options.licence)
    print(f"written to {printable(str(exported.path))}; load it with:\n\n{exported.code}")
    return 0
