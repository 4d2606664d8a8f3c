"""A trained backbone, ready to use."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ressl.cards import read_card, transform_of
from ressl.data.decode import shown
from ressl.errors import ResslError, printable
from ressl.files import open_regular, read_bytes, read_json
from ressl.memory import overfull
from ressl.programs import read_program
from ressl.published import filled, open_published
from ressl.runs import Run
from ressl.transform import Transform

__all__ = ["OnnxBackbone", "Transform", "load"]

_EXPECTED = (
    "give a run folder, an exported model (folder, .safetensors, .pth, .onnx, .pt2) or a published ResNet (.pth)"
)


def load(path: str | os.PathLike[str]) -> tuple[nn.Module, Transform]:
    """A backbone (eval mode, CPU) and the transform that prepares its input.

    ``path`` is a run or its folder, what ``ressl export`` wrote, or a published checkpoint of the ReSSL authors (any
    file with one ImageNet ResNet in it). Nothing in a file is ever executed.
    """
    path = Path(path)
    if not path.exists():
        raise ResslError(f"there is nothing at {shown(path)}; {_EXPECTED}")
    if path.is_dir() and not (path / "config.json").is_file():
        run = Run.open(path)
        recipe = run.recipe
        resize = recipe.linear.resize or recipe.image_size
        return run.backbone(), Transform(recipe.image_size, resize, recipe.mean, recipe.std)
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except ResslError as error:
        raise ResslError(f"{shown(path)} cannot be loaded: {error}") from error
    except OSError as error:
        raise ResslError(f"{shown(path)} cannot be read: {error.strerror or printable(str(error))}") from error


def _folder(path: Path) -> tuple[nn.Module, Transform]:
    try:
        config = read_json(path / "config.json")
    except ValueError as error:
        raise ResslError("its config.json is not JSON") from error
    if not isinstance(config, dict) or "ressl" not in config:
        raise ResslError("its config.json is not of ressl; export it with --to huggingface")
    return _described(read_card(json.dumps(config["ressl"])), _safetensors(path / "model.safetensors")[0])


def _file(path: Path) -> tuple[nn.Module, Transform]:
    with open_regular(path) as file:
        start = file.read(16)
    if path.suffix == ".onnx":
        return _onnx(path)
    if path.suffix == ".pt2":
        return _program(path)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        weights, metadata = _safetensors(path)
        if "ressl" in metadata:
            return _described(read_card(metadata["ressl"]), weights)
        if metadata.get("format", "").startswith("ressl-checkpoint"):
            raise ResslError("it is a checkpoint inside a run; give the run folder")
        return open_published(weights)
    content = _torch(path)
    card = path.with_suffix(".card.json")
    if card.is_file():
        return _described(read_card(read_bytes(card)), content)
    return open_published(content)


def _described(card: dict[str, Any], weights: Any) -> tuple[nn.Module, Transform]:
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise ResslError("it holds no weights beside its card; export it again")
    return filled(card["backbone"], card["stem"], card["width"], weights), transform_of(card)


def _safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (safetensors.SafetensorError, MemoryError) as error:
        raise ResslError(f"it is no whole safetensors file ({printable(str(error))[:120]})") from error


def _torch(path: Path) -> Any:
    """What ``torch.save`` wrote, tensors and plain values only: a file that holds more is refused, not trusted."""
    if why := overfull(path):
        raise ResslError(f"it is neither safetensors nor a PyTorch file of plain tensors ({why})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on odd pickles, which are refused anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # pickle, zipfile and torch raise a wide choice
        kind = type(error).__name__
        raise ResslError(
            f"it is neither safetensors nor a PyTorch file of plain tensors ({kind}; whatever would run code is "
            "refused)"
        ) from None


def _program(path: Path) -> tuple[nn.Module, Transform]:
    card, weights = read_program(path)
    try:
        return _described(read_card(card), weights)
    except ResslError as error:  # a network around the backbone, perhaps: the program is in there, but would run
        raise ResslError(f"{error}; if you trust it use torch.export.load") from error


class OnnxBackbone(nn.Module):
    """An exported ONNX file with the face of a backbone; it runs on onnxruntime, not on torch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError as error:
            raise ResslError("ONNX files need onnxruntime: pip install 'ressl[onnx]'") from error
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
        except Exception as error:
            raise ResslError(f"onnxruntime refuses it ({printable(str(error).split(chr(10))[0])[:120]})") from None
        self.digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.card = dict(self.session.get_modelmeta().custom_metadata_map).get("ressl")

    def forward(self, x: Tensor) -> Tensor:
        (features,) = self.session.run(["features"], {"pixels": x.float().cpu().numpy()})
        return torch.from_numpy(features).to(x.device)


def _onnx(path: Path) -> tuple[nn.Module, Transform]:
    backbone = OnnxBackbone(path)
    if backbone.card is None:
        raise ResslError("it has no card of ressl; export it with --to onnx")
    card = read_card(backbone.card)
    backbone.features_dim = int(card["features_dim"])  # type: ignore[assignment]
    return backbone.eval(), transform_of(card)
