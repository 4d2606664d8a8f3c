"""The nearest pictures to a picture over a file of features.

Exact up to half a million rows: every row is compared, block by block, in bounded memory. Beyond that an index of
usearch (HNSW graph, `pip install 'ressl[search]'`) is made once beside the file and answers in milliseconds; it may
miss a neighbour now and then. ``index="exact"`` compares every row whatever their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ressl.data.base import Source
from ressl.data.decode import BrokenImage, Picture, shown
from ressl.embedding import Embeddings, embed
from ressl.encoder import Encoder, Images, Model, open_images
from ressl.errors import ResslError, unknown
from ressl.featurefiles import FeatureFile, Floats, open_features
from ressl.report.contact import contact_sheet

INDEXES = ("auto", "exact", "usearch")
EXACT_LIMIT = 500_000  # rows


class Found(NamedTuple):
    row: int
    cosine: float
    path: str


def search(
    features: str | Path | FeatureFile,
    picture: str | Path,
    model: Model | None = None,
    k: int = 12,
    *,
    index: str = "auto",
    device: str = "auto",
    message: Callable[[str], None] = lambda text: None,
) -> list[Found]:
    """The ``k`` rows of a feature file nearest to ``picture`` by cosine, nearest first.

    ``model`` must be the one that made the features; by default it is loaded from where it was then.
    """
    if index not in INDEXES:
        raise unknown("index", index, INDEXES)
    if k < 1:
        raise ResslError(f"k must be at least 1, not {k}")
    file = features if isinstance(features, FeatureFile) else open_features(features)
    query = _query(file, picture, model, device)
    if index == "auto":
        index = "exact" if len(file) <= EXACT_LIMIT or not _has_usearch() else "usearch"
        if index == "exact" and len(file) > EXACT_LIMIT:
            message(f"{len(file):,} rows compared one by one; an index is faster: pip install 'ressl[search]'")
    rows, cosines = nearest_exact(file, query, k) if index == "exact" else nearest_indexed(file, query, k, message)
    return [Found(int(row), float(cosine), file.paths[int(row)]) for row, cosine in zip(rows, cosines, strict=True)]


def _query(file: FeatureFile, picture: str | Path, model: Model | None, device: str) -> Floats:
    if not Path(picture).is_file():
        raise ResslError(f"there is no picture {shown(picture)}")
    if model is None:
        model = file.facts.get("model")
        if not isinstance(model, str):
            raise ResslError(f"{shown(file.path)} does not say which model made it; add --model MODEL")
    encoder = Encoder(model, device)
    made_by = file.facts.get("weights")
    if made_by is not None and made_by != encoder.weights:
        raise ResslError(f"{shown(file.path)} was made by another model; give the one that made it as --model")
    found: Embeddings = embed(encoder, [str(picture)], workers=0)
    query: Floats = found.features[0]
    if query.shape[0] != file.dim:
        raise ResslError(f"the model gives {query.shape[0]} numbers per picture, {shown(file.path)} has {file.dim}")
    return query


def _unit(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: Floats = rows / np.maximum(length, np.float32(1e-12))
    return unit


def nearest_exact(file: FeatureFile, query: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """(rows, cosines) of the k nearest, every row compared; of equals the first."""
    rows, cosines = np.empty(0, np.int64), np.empty(0, np.float32)
    q = _unit(query)
    for start, block in file.blocks():
        c = np.concatenate([cosines, _unit(block) @ q])
        at = np.concatenate([rows, np.arange(start, start + len(block))])
        best = np.lexsort((at, -c))[:k]
        rows, cosines = at[best], c[best]
    return rows, cosines


def _has_usearch() -> bool:
    import importlib.util

    return importlib.util.find_spec("usearch") is not None


def nearest_indexed(
    file: FeatureFile, query: Floats, k: int, message: Callable[[str], None]
) -> tuple[NDArray[np.int64], Floats]:
    """(rows, cosines) of the k nearest as the index finds them, their cosines recomputed."""
    index = _open_index(file, message)
    rows = np.sort(np.asarray(index.search(query, min(k, len(file))).keys, dtype=np.int64))
    vectors = np.stack([np.asarray(index.get(int(row)), dtype=np.float32) for row in rows])
    cosines = _unit(vectors) @ _unit(query)
    best = np.lexsort((rows, -cosines))
    return rows[best], cosines[best]


def _open_index(file: FeatureFile, message: Callable[[str], None]) -> Any:
    try:
        from usearch.index import Index
    except ImportError as error:
        raise ResslError("an index needs usearch: pip install 'ressl[search]', or use --index exact") from error
    path = file.path.with_name(file.path.name + ".usearch")
    index = Index(ndim=file.dim, metric="cos", dtype="f32")
    if path.is_file() and path.stat().st_mtime_ns >= file.path.stat().st_mtime_ns:
        try:
            index.load(str(path))
            if len(index) == len(file) and index.ndim == file.dim:
                return index
        except (RuntimeError, ValueError):  # cut, or of another version: made again below
            pass
        index = Index(ndim=file.dim, metric="cos", dtype="f32")
    message(f"making an index of {len(file):,} rows, once: {shown(path)}")
    for start, block in file.blocks():
        index.add(np.arange(start, start + len(block)), block)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    index.save(str(temporary))
    os.replace(temporary, path)
    return index


def draw_sheet(picture: str | Path, found: list[Found], out: Path, images: Images | None = None) -> Path:
    """A contact sheet of the picture and what was found. ``images`` is needed where rows are not files."""
    source = None if images is None else open_images(images)
    captions = [(_open(f, source), f"{f.cosine:.3f}\n{shown(Path(f.path).name)}") for f in found]
    try:
        with Picture(str(picture)) as opened:
            query = opened.load()
        return contact_sheet(query, captions, out)
    except OSError as error:
        raise ResslError(f"cannot write {shown(out)}: {error.strerror or error}") from error


def _open(found: Found, source: Source | None) -> Image.Image | None:
    try:
        if source is None:
            with Picture(found.path) as picture:
                return picture.load()
        return Image.fromarray(source.read(found.row)) if found.row < len(source) else None
    except BrokenImage:
        return None
