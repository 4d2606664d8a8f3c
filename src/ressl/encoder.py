"""A loaded model as a function of pictures, and pictures in any form as a source."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ressl.data.arrays import open_streamed
from ressl.data.augment import to_float
from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.decode import EXTENSIONS, shown
from ressl.data.folders import open_split
from ressl.data.lists import SUFFIXES, open_list
from ressl.data.views import normalize
from ressl.engine.accelerate import lay_out
from ressl.engine.folding import fold
from ressl.engine.loop import device_of
from ressl.errors import ResslError
from ressl.evaluating import precision_of
from ressl.evaluation.features import autocast
from ressl.loading import OnnxBackbone, load
from ressl.transform import Transform

Model = str | os.PathLike[str] | tuple[nn.Module, Transform]
Images = str | Path | Sequence[str | Path] | NDArray[np.generic] | Tensor | Source
_FORMS = (
    "give a folder, a picture's path, a .txt with a path per line, an .npy or .npz, a list of paths, or uint8 pictures "
    "in one array of shape N x H x W x 3"
)


class Encoder:
    """A loaded model as a function of uint8 pictures of its input size."""

    def __init__(self, model: Model, device: str = "auto", precision: str = "auto") -> None:
        self.name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        if isinstance(model, (str, os.PathLike)):
            backbone, self.transform = load(model)
        else:
            backbone, self.transform = model
            if not isinstance(backbone, OnnxBackbone):
                backbone = copy.deepcopy(backbone)  # the caller's own stays where and as it is
        self.device = device_of("cpu" if isinstance(backbone, OnnxBackbone) else device)
        self.dtype = precision_of(precision, self.device)
        self.weights = _digest(backbone)
        self._backbone = lay_out(backbone.eval(), self.device)
        # Folded norms double the speed on a GPU; on a CPU the plain network is as fast, and the reference.
        self._fast = fold(self._backbone, self.dtype) if self.device.type == "cuda" else None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """n x 3 x s x s uint8 -> n x D float32 on the device."""
        images = images.to(self.device, non_blocking=True)
        x = normalize(to_float(images), self.transform.mean, self.transform.std)
        if self._fast is not None:
            return self._fast(x)
        with autocast(self.device, self.dtype):
            features: Tensor = self._backbone(x)
        return features.float()


def _digest(backbone: nn.Module) -> str:
    if isinstance(backbone, OnnxBackbone):
        return backbone.digest
    hasher = hashlib.sha256()
    for name, tensor in backbone.state_dict().items():
        hasher.update(name.encode())
        hasher.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy() if tensor.ndim else b"")
    return hasher.hexdigest()


def open_images(images: Images) -> Source:
    """Any form of pictures as a source, in a fixed order."""
    if isinstance(images, Source):
        return images
    if isinstance(images, np.ndarray):
        return _open_array(images)
    if isinstance(images, Tensor):
        return _open_tensor(images)
    if isinstance(images, (str, os.PathLike)):
        if images == "":
            raise ResslError("the place of the pictures is empty; name it ('.' is the current folder)")
        path = Path(images)
        if path.is_dir():
            return open_split(path.name, path, [])
        if path.suffix.lower() in (".npy", ".npz"):
            return open_streamed(path, path.name)
        if path.suffix.lower() in EXTENSIONS and path.is_file():
            return FileSource(path.name, [str(path)])
        if path.suffix.lower() in SUFFIXES and path.is_file():
            return open_list(path, "train")
        raise ResslError(
            f"there are no pictures at {shown(path)}; give a folder, a picture, a .txt with a path per line, or an "
            ".npy or .npz array"
        )
    try:
        paths = [os.fspath(path) for path in images]
    except TypeError:
        what = type(images).__name__
        if isinstance(images, (list, tuple)):
            what += f" of {next(type(i).__name__ for i in images if not isinstance(i, (str, os.PathLike)))}"
        raise ResslError(f"pictures cannot be taken from {what}; {_FORMS}") from None
    if not paths:
        raise ResslError("there are no paths in the list of pictures")
    return FileSource("list", paths)


def _open_array(images: NDArray[np.generic]) -> Source:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3) or not images.size:
        raise ResslError(
            f"pictures in an array are uint8 of shape N x H x W x 3, not {images.dtype} of shape {images.shape}"
        )
    images = images if images.flags.writeable and min(images.strides) >= 0 else images.copy()
    return ArraySource("array", torch.from_numpy(images).permute(0, 3, 1, 2).expand(-1, 3, -1, -1))


def _open_tensor(images: Tensor) -> Source:
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or images.ndim != 4 or 3 not in (shape[1], shape[3]) or not images.numel():
        raise ResslError(
            "pictures in a tensor are uint8 of shape N x 3 x H x W or N x H x W x 3, not "
            f"{str(images.dtype).removeprefix('torch.')} of shape {shape}"
        )
    return ArraySource("array", (images if shape[1] == 3 else images.permute(0, 3, 1, 2)).cpu())
