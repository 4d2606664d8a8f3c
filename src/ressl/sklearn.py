"""ReSSL as a transformer of scikit-learn: pictures in, features out.

>>> import numpy as np
>>> from ressl.sklearn import ReSSLEncoder
>>> pictures = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
>>> encoder = ReSSLEncoder(epochs=1, changes={"backbone": "resnet10", "width": 4}, device="cpu", random_state=0)
>>> encoder.fit(pictures).transform(pictures).shape
(40, 32)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from ressl import console
from ressl.data.sources import guess_data
from ressl.embedding import embed
from ressl.encoder import Images
from ressl.errors import ResslError
from ressl.loading import load
from ressl.pretraining import pretrain
from ressl.recipes import Recipe, get_recipe
from ressl.runs import Run

Pictures = str | Path | Sequence[str | Path] | NDArray[np.generic]


class ReSSLEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Learn a backbone from pictures without labels; turn pictures into its features.

    Pictures are a folder, an .npy or .npz, a list or array of paths, or an array: N x H x W x 3 or N x H x W, uint8 or
    floats in 0..1. Labels are ignored.

    Args:
        recipe: a :class:`~ressl.recipes.Recipe` or its name; None chooses one from the pictures.
        epochs: passes over the pictures; None leaves it to the recipe.
        changes: other fields of the recipe, or options of its method, to change.
        device: auto, cpu or cuda.
        batch_size: pictures per forward in ``transform``.
        random_state: an int is the seed of the training; None draws one, as everywhere in scikit-learn.
        verbose: whether to show the progress of training.

    Attributes:
        model_: the trained backbone, on the CPU.
        transform_: what prepares its input.
        recipe_: what was trained.
        history_: the curves, a dict per log point.
    """

    def __init__(
        self,
        recipe: str | Recipe | None = None,
        *,
        epochs: int | None = None,
        changes: Mapping[str, Any] | None = None,
        device: str = "auto",
        batch_size: int = 256,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.recipe = recipe
        self.epochs = epochs
        self.changes = changes
        self.device = device
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Pictures, y: object = None) -> ReSSLEncoder:
        """Train on the pictures ``X``; ``y`` is not looked at."""
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31)
        changes = dict(self.changes or {}) | ({} if self.epochs is None else {"epochs": self.epochs})
        with tempfile.TemporaryDirectory() as folder:
            data = _on_disk(_listed(X), Path(folder))
            recipe = self.recipe
            if recipe is not None:
                base = recipe if isinstance(recipe, Recipe) else get_recipe(recipe)
                recipe = base.replace(data=guess_data(data))
            with console.display() if self.verbose else nullcontext(console.Silent()) as display:
                run: Run = pretrain(
                    recipe,
                    data=data,
                    out=Path(folder) / "run",
                    device=self.device,
                    display=display,
                    **(changes | {"seed": int(seed)}),
                )
            self.model_, self.transform_ = load(run.path)
            self.recipe_, self.history_ = run.recipe, run.metrics()
        self._n_features_out = int(self.model_.features_dim)  # type: ignore[arg-type]
        return self

    def transform(self, X: Pictures) -> NDArray[np.float32]:
        """N x D features, a row per picture; of a folder in the order of the sorted paths."""
        check_is_fitted(self)
        X = _listed(X)
        images: Images = X if _is_place(X) else _pictures(X)
        found = embed((self.model_, self.transform_), images, device=self.device, batch_size=self.batch_size)
        if found.broken:
            name, reason = next(iter(found.broken.items()))
            raise ResslError(
                f"{len(found.broken)} of the pictures cannot be read, so rows would not match; take them out (the "
                f"first: {name}: {reason})"
            )
        return found.features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # rows of numbers are no pictures
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _listed(X: Pictures) -> Pictures:
    """An array of paths, as splitting or sorting with numpy leaves it, as the list it was."""
    if isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "UO" and _is_place(X.tolist()):
        return X.tolist()
    return X


def _is_place(X: object) -> bool:
    """Whether these are paths rather than pixels."""
    if isinstance(X, (str, os.PathLike)):
        return True
    if isinstance(X, np.ndarray):
        return False
    return isinstance(X, Sequence) and len(X) > 0 and all(isinstance(item, (str, os.PathLike)) for item in X)


def _pictures(X: Any) -> NDArray[np.uint8]:
    """N x H x W x 3 uint8 from any array of pictures; raises ValueError as scikit-learn's own do."""
    array = check_array(X, dtype="numeric", ensure_2d=False, allow_nd=True, estimator="ReSSLEncoder")
    if array.ndim == 3 and array.shape[2] in (1, 3, 4):  # N pictures of three pixels' width nobody has
        raise ValueError(
            f"ReSSLEncoder wants several pictures; found one of shape {array.shape}. Make it a batch of one: X[None]."
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise ValueError(
            f"ReSSLEncoder wants pictures, N x H x W x 3 or N x H x W, or paths; found an array of shape "
            f"{np.shape(X)}. Reshape your data: X.reshape(-1, height, width, 3)."
        )
    if array.dtype != np.uint8:
        if array.dtype.kind != "f" or array.min() < 0 or array.max() > 1:
            raise ValueError(f"ReSSLEncoder wants uint8 pixels or floats in 0..1; found {array.dtype}.")
        array = np.rint(array * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:3], 3)))


def _on_disk(X: Pictures, folder: Path) -> Path:
    """Where training can read the pictures."""
    if isinstance(X, (str, os.PathLike)):
        return Path(X)
    if not _is_place(X):
        np.save(folder / "pictures.npy", _pictures(X))
        return folder / "pictures.npy"
    links = folder / "pictures"
    links.mkdir()
    for number, path in enumerate(X):
        (links / f"{number:09d}{Path(path).suffix}").symlink_to(Path(path).absolute())
    return links
