"""A trained backbone for other programs: files that load without this package.

>>> from ressl.export import export
>>> print(export("runs/photos", "torchvision").path)  # .code: Python that loads it
runs/photos/export/photos-torchvision.pth
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from ressl.cards import card_of, model_card, network_code, onnx_code, timm_code, torch_export_code, torchvision_code
from ressl.errors import ResslError, unknown
from ressl.files import write_atomically
from ressl.published import filled
from ressl.runs import Run

OPSET = 18  # of ONNX: what PyTorch's exporter writes without conversion, read by onnxruntime since 1.14
CARD = "ressl"  # the key of the card in a file's metadata


class Exported(NamedTuple):
    path: Path
    code: str  # Python that loads it without this package


class _Job(NamedTuple):
    backbone: nn.Module  # plain norms, eval mode, CPU
    card: dict[str, Any]
    path: Path

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.backbone.state_dict().items()}

    @property
    def shown(self) -> str:
        return os.fspath(self.path)

    @property
    def example(self) -> Tensor:
        size = self.card["image_size"]
        return torch.zeros(2, 3, size, size)  # two: a batch of one would become a constant


def export(run: Run | str | Path, to: str, out: str | Path | None = None, licence: str | None = None) -> Exported:
    """Write the run's backbone for ``to`` (a key of ``FORMATS``) and say where and how it is loaded.

    Without ``out`` it goes to ``RUN/export/``. Mean, std, input size, recipe, commit and results travel inside the
    file where the format has a place for them, else in a .card.json beside it; so does ``licence``, in your words.
    """
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    run = run if isinstance(run, Run) else Run.open(run)
    write, ending = FORMATS[to]
    name = run.path.resolve().name + ("" if to == ending[1:] else f"-{to}") + ending
    path = Path(out) if out is not None else run.path / "export" / name
    if ending and path.suffix != ending:
        raise ResslError(f"--to {to} writes a {ending} file; name it so, not {path.name}")
    recipe, trained = run.recipe, run.backbone()
    looks_at = getattr(trained, "looks_at", None)  # a network around the backbone, which has names of its own
    if looks_at is not None and to not in PROGRAMS:
        raise ResslError(
            f"the network of a {recipe.method} run looks at {looks_at}, which --to {to} has no name for; "
            f"use --to {' or '.join(PROGRAMS)}"
        )
    # Anew, with norms of one group: others know no more, and in eval mode all are the same.
    backbone = trained if looks_at else filled(recipe.backbone, recipe.stem, recipe.width, trained.state_dict())
    job = _Job(backbone.requires_grad_(False), card_of(run, int(backbone.features_dim), licence), path)  # type: ignore[arg-type]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Exported(path, write(job))
    except OSError as error:
        raise ResslError(f"cannot write {path}: {error.strerror}") from error


def _json(card: dict[str, Any]) -> str:
    return json.dumps(card, indent=2) + "\n"


def _safetensors(job: _Job) -> bytes:
    # "format": "pt" is what libraries around Hugging Face look for before they read a file.
    return safetensors.torch.save(job.weights, {"format": "pt", CARD: json.dumps(job.card)})


def _to_safetensors(job: _Job) -> str:
    write_atomically(job.path, _safetensors(job))
    return network_code(job.card, job.shown)


def _to_timm(job: _Job) -> str:
    code = timm_code(job.card, job.shown)  # first: it says what timm cannot build
    write_atomically(job.path, _safetensors(job))
    return code


def _to_torchvision(job: _Job) -> str:
    code = {"how_to_load": torchvision_code(job.card, job.path.name)}
    buffer = io.BytesIO()
    torch.save(job.weights, buffer)
    # The card first: weights without it could not be used rightly, a card without weights is merely alone.
    write_atomically(job.path.with_suffix(".card.json"), _json(job.card | code).encode())
    write_atomically(job.path, buffer.getvalue())
    return torchvision_code(job.card, job.shown)


def _to_onnx(job: _Job) -> str:
    try:
        import onnx
        import onnxscript  # noqa: F401  (the exporter's own need; it would say so in a traceback)
    except ImportError as error:
        raise ResslError(f"ONNX export needs {error.name}: pip install 'ressl[onnx]'") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            job.backbone,
            (job.example,),
            input_names=["pixels"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # where in whose files each operation came from
    onnx.helper.set_model_props(model, {CARD: json.dumps(job.card)})
    onnx.checker.check_model(model)
    write_atomically(job.path, model.SerializeToString())
    return onnx_code(job.shown)


def _to_torch_export(job: _Job) -> str:
    program = torch.export.export(job.backbone, (job.example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={f"{CARD}.json": json.dumps(job.card)})
    write_atomically(job.path, buffer.getvalue())
    return torch_export_code(job.shown)


def _to_huggingface(job: _Job) -> str:
    folder, card = job.path, job.card
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not _is_ours(folder))):
        raise ResslError(f"{folder} exists already and is no exported model; choose another -o")
    folder.mkdir(exist_ok=True)
    config: dict[str, Any] = {CARD: card, "num_features": card["features_dim"], "num_classes": 0}
    plain = card["width"] == 64 and card["stem"] == "imagenet" and card["backbone"] != "resnet10"
    if plain or card["backbone"].startswith("timm/"):  # whose networks have neither
        # timm's own keys, so that timm.create_model("local-dir:FOLDER") and the hub take the folder as it is.
        size, crop = card["image_size"], card["image_size"] / card["resize"]
        config |= {
            "architecture": card["backbone"].removeprefix("timm/"),
            "pretrained_cfg": {
                "input_size": [3, size, size],
                "crop_pct": crop,
                "interpolation": "bilinear",
                "mean": card["mean"],
                "std": card["std"],
                "num_classes": 0,
            },
        }
    write_atomically(folder / "model.safetensors", _safetensors(job))
    write_atomically(folder / "README.md", model_card(card).encode())
    write_atomically(folder / "config.json", _json(config).encode())  # last: it makes the folder a model
    return network_code(card, os.fspath(folder / "model.safetensors")) + "\n# its README.md shows other ways"


def _is_ours(folder: Path) -> bool:
    return all(p.name in ("config.json", "README.md", "model.safetensors") for p in folder.iterdir())


FORMATS: dict[str, tuple[Callable[[_Job], str], str]] = {  # name: (writer, ending)
    "torchvision": (_to_torchvision, ".pth"),
    "timm": (_to_timm, ".safetensors"),
    "safetensors": (_to_safetensors, ".safetensors"),
    "onnx": (_to_onnx, ".onnx"),
    "torch-export": (_to_torch_export, ".pt2"),
    "huggingface": (_to_huggingface, ""),
}

PROGRAMS = ("onnx", "torch-export")  # these carry the computation with the weights
