"""What several commands share: the words for every option, checks of values, tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ressl.errors import ResslError, printable
from ressl.recipes.typed import convert, wants

PICTURES = (".png", ".jpg", ".webp", ".pdf", ".svg")

HELP = {
    "image_size": "side of the square the networks see, in pixels",
    "mean": "per channel, of pixels in 0..1",
    "std": "per channel, of pixels in 0..1",
    "backbone": "resnet10, resnet18, resnet34, resnet50, or timm/<model>",
    "stem": "first layers: small (32 px), medium (64 px), imagenet (224 px)",
    "width": "channels of the first stage; 64 is the usual network",
    "stem_init": "how a small or medium stem begins: as the other convolutions, or as PyTorch's layers (the authors')",
    "bn_groups": "groups of the batch with batch-norm statistics of their own",
    "method": "the learning method, see 'ressl methods'",
    "optimiser": "of all weights",
    "epochs": "passes over the data",
    "batch_size": "samples per step, over all processes",
    "lr": "peak learning rate per 256 samples",
    "momentum": "of the optimiser",
    "weight_decay": "of the optimiser",
    "decay_norm_and_bias": "whether weight decay applies to norms and biases too",
    "warmup_epochs": "epochs over which the learning rate rises",
    "seed": "of everything that is random",
    "knn_every": "epochs between two kNN measurements; 0: at the end only",
    "knn_k": "neighbours",
    "knn_temperature": "of the neighbours' weights",
    "hidden_dim": "of the projection head",
    "output_dim": "of the embedding",
    "queue_size": "past samples that relations refer to (K)",
    "teacher_momentum": "of the moving average (m)",
    "student_temperature": "tau_s",
    "teacher_temperature": "tau_t; below tau_s",
    "temperature": "of a contrastive loss, or of the neighbours' weights",
    "num_classes": "classes of the labels",
    "predictor_dim": "width of the predictor's bottleneck",
    "projector_layers": "layers of the projector",
    "prototypes": "how many prototypes",
    "epsilon": "softness of the assignment to prototypes",
    "sinkhorn_iterations": "rounds of evening out the assignment",
    "output_batch_norm": "batch norm behind the head: spreads a small network's embeddings from the start",
    "queue_from": "share of the training after which the queue takes part",
    "prototypes_from": "share of the training after which prototypes learn",
    "bank_size": "pictures in the memory bank: all of the data",
    "bank_momentum": "of a picture's place in the bank",
    "negatives": "how many negatives",
    "normaliser_momentum": "of the normaliser's estimate; 1: the first batch's, as the authors have it",
    "background": "background neighbours of a picture",
    "clusterings": "how many times the bank is clustered",
    "clusters": "clusters of each time",
    "cluster_from": "share of the training after which clusters are made",
    "hardest": "negatives of the queue to mix from",
    "mixed": "mixtures of two of them",
    "mixed_with_query": "mixtures of one of them and the query",
    "mix_from": "share of the training after which mixtures take part",
    "patch": "side of a patch in pixels",
    "stride": "pixels between two patches",
    "context_layers": "layers of the context network",
    "rows_ahead": "how many rows below the last patch is that is predicted",
    "rows_ignored": "rows below that are not predicted, because they overlap",
    "color_drop": "probability that a patch keeps one channel only",
    "patch_jitter": "strength of each patch's own brightness and contrast",
    "granularities": "clusters at each granularity",
    "negatives_temperature": "of the negatives' own objective",
    "negatives_lr_scale": "learning rate of the negatives beside the network's",
    "negatives_decay": "weight decay of the negatives",
    "divergence": "weight of the divergence on stronger views",
    "teacher": "run folder of a trained teacher",
    "teacher_backbone": "what that run trained",
    "teacher_stem": "stem of that backbone",
    "teacher_width": "width of that backbone",
    "teacher_hidden_dim": "of that run's projection head",
    "teacher_head": "that head in words (like the rest of that network, it is read from the run)",
    "head_batch_norm": "batch norm in the projection head (the paper has none)",
    "schedule": "how the learning rate falls",
    "milestones": "fractions of the epochs at which the step schedule falls to a tenth",
    "nesterov": "Nesterov momentum",
    "augment": "random crop and flip of the training pictures",
    "scale": "area range of a random crop, as shares of the picture or patch",
    "resize": "short side before the centre crop of test pictures; none: as they are",
    "standardize": "features to mean 0 and deviation 1 first",
    "k": "neighbours that vote",
    "ks": "the numbers of neighbours to try",
    "rates": "schedules and learning rates to try, as step:30,cosine:0.2",
    "shots": "labelled pictures per class",
    "full": "also with every label",
    "draws": "random choices of the labelled pictures",
    "cost": "C, the weight of the loss against the margin",
    "positive_weight": "a positive's cost in negatives'",
    "fractions": "shares of the labels, e.g. 0.01,0.1",
    "head_lr": "learning rate of the new classifier per 256 samples",
    "pictures": "test pictures at most",
    "to": "data sets: NAME, NAME=PATH or FOLDER, separated by spaces",
}


def describe(name: str, kind: Any) -> str:
    """The help of an option that is a field of a recipe or protocol, or an option of a method."""
    return f"{HELP[name]} ({wants(kind)})" if name in HELP else wants(kind)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def positive(name: str, value: str) -> int:
    number: int = convert(int, value, name)
    if number < 1:
        raise ResslError(f"{name} must be at least 1, not {number}")
    return number


def natural(name: str, value: str) -> int:
    number: int = convert(int, value, name)
    if number < 0:
        raise ResslError(f"{name} must be at least 0, not {number}")
    return number


def above_zero(name: str, value: str) -> float:
    number: float = convert(float, value, name)
    if not 0 < number < float("inf"):
        raise ResslError(f"{name} must be above 0, not {value}")
    return number


def picture_file(name: str) -> Path:
    """Where a figure goes; its ending says the format, which is better known before the work than after it."""
    path = Path(name)
    if path.suffix.lower() not in PICTURES:
        raise ResslError(f"'{printable(name)}' is no file for a figure; end it in {', '.join(PICTURES)}")
    return path


def writable_folder(name: str, value: str) -> None:
    """A folder that is to be written into later, there already or to be made then."""
    folder = Path(value).absolute()
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    asked, found = printable(value), printable(str(nearest))
    if not nearest.is_dir():
        raise ResslError(f"{name} {asked}: {found} is no folder; name one, or a new place")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ResslError(f"{name} {asked}: no right to write in {found}; name another folder")


def table(title: str, *headings: str, left: Sequence[str], wrapped: Sequence[str] = ()) -> Table:
    """An empty table: words stand ``left``, numbers right, and only what is ``wrapped`` is broken into lines."""
    made = Table(title=title, title_justify="left")
    for heading in headings:
        made.add_column(heading, justify="left" if heading in left else "right", no_wrap=heading not in wrapped)
    return made


def show(table: Table) -> None:
    # A pipe has no width; tables made for 80 columns there would break their cells.
    # Names of files and classes come from anywhere: what looks like rich's markup in them is none.
    Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False).print(table)
