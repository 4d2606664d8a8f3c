"""The nearest pictures to a picture over a file of features.

Exact up to half a million rows: every row is compared, block by block, in bounded memory. Beyond that an index of
usearch (HNSW graph, `pip install 'ressl[search]'`) is made once beside the file and answers in milliseconds; it may
miss a neighbour now and then. ``index="exact"`` compares every row whatever their number.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ressl.data.base import Source
from ressl.data.decode import BrokenImage, Picture, shown
from ressl.data.index import cache_folder
from ressl.embedding import Embeddings, embed
from ressl.encoder import Encoder, Images, Model, open_images
from ressl.errors import ResslError, unknown
from ressl.featurefiles import FeatureFile, Floats, open_features
from ressl.files import open_regular, read_bytes, read_json, stamp, write_atomically
from ressl.report.contact import contact_sheet

INDEXES = ("auto", "exact", "usearch")
EXACT_LIMIT = 500_000  # rows
LOOKS = 4  # at most, for rows that an index has lost


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
    if not len(file):
        raise ResslError(f"{shown(file.path)} has no rows to search")
    query = _query(file, picture, model, device)
    if index == "auto":
        index = "exact" if len(file) <= EXACT_LIMIT or not _has_usearch() else "usearch"
        if index == "exact" and len(file) > EXACT_LIMIT:
            message(f"{len(file):,} rows compared one by one; an index is faster: pip install 'ressl[search]'")
    rows, cosines = nearest_exact(file, query, k) if index == "exact" else nearest_indexed(file, query, k, message)
    place = lambda row: file.place(file.paths[int(row)])
    return [Found(int(row), float(cosine), place(row)) for row, cosine in zip(rows, cosines, strict=True)]


def _query(file: FeatureFile, picture: str | Path, model: Model | None, device: str) -> Floats:
    if not Path(picture).is_file():
        raise ResslError(f"there is no picture {shown(picture)}")
    encoder = _own_encoder(file, device) if model is None else Encoder(model, device)
    made_by = file.facts.get("weights")
    if made_by is not None and made_by != encoder.weights:
        raise ResslError(f"{shown(file.path)} was made by another model; give the one that made it as --model")
    found: Embeddings = embed(encoder, [str(picture)], workers=0)
    query: Floats = found.features[0]
    if query.shape[0] != file.dim:
        raise ResslError(f"the model gives {query.shape[0]} numbers per picture, {shown(file.path)} has {file.dim}")
    if not np.isfinite(query).all():
        raise ResslError(f"the model gives numbers for {shown(picture)} that are not finite; train or export it again")
    return query


def _own_encoder(file: FeatureFile, device: str) -> Encoder:
    """The model that the file names."""
    name = file.facts.get("model")
    if not isinstance(name, str):
        raise ResslError(f"{shown(file.path)} does not say which model made it; add --model MODEL")
    if not os.path.exists(place := file.place(name)):
        raise ResslError(f"{shown(file.path)} was made by {shown(name)}, which is not there; add --model MODEL")
    return Encoder(place, device)


def _unit(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: Floats = rows / np.maximum(length, np.float32(1e-12))
    return unit


def _finite(file: FeatureFile) -> Iterator[tuple[int, Floats]]:
    """The blocks of a file; one number that is none would make every comparison with its row senseless."""
    for start, block in file.blocks():
        if not np.isfinite(block).all():
            row = start + int(np.flatnonzero(~np.isfinite(block).all(1))[0])
            raise ResslError(f"row {row} of {shown(file.path)} holds numbers that are not finite; embed it again")
        yield start, block


def nearest_exact(file: FeatureFile, query: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """(rows, cosines) of the k nearest, every row compared; of equals the first."""
    rows, cosines = np.empty(0, np.int64), np.empty(0, np.float32)
    q = _unit(query)
    for start, block in _finite(file):
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
    note, made_of = path.with_name(path.name + ".json"), stamp(file.path)
    index = Index(ndim=file.dim, metric="cos", dtype="f32")
    if (noted := _noted(note)) is not None and noted == [made_of, _seal(path)]:
        try:
            index.load(str(path))
            if len(index) == len(file) and index.ndim == file.dim:
                return index
        except (RuntimeError, ValueError):  # cut, or of another version: made again below
            pass
        index = Index(ndim=file.dim, metric="cos", dtype="f32")
    message(f"making an index of {len(file):,} rows, once: {shown(path)}")
    threads = 1 if len(file) <= 20_000 else 0  # one makes the same index every time, in seconds; 0: all
    for start, block in _finite(file):
        index.add(np.arange(start, start + len(block)), block, threads=threads)
    add_lost(index, file)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        note.unlink(missing_ok=True)  # first: between the two files an index belongs to nothing
        index.save(str(temporary))
        os.replace(temporary, path)
        write_atomically(note, (json.dumps([made_of, _seal(path)]) + "\n").encode())
    except OSError as error:
        raise ResslError(f"cannot write {shown(path)}: {error.strerror}; use --index exact") from error
    return index


def add_lost(index: Any, file: FeatureFile) -> None:
    """Put in again, one by one, every row that does not find itself.

    Threads that add to the graph at once overwrite links of one another now and then (1 to 40 rows in 1,000, by the
    number of threads), and a row to which no link leads is never found. To put one in may cost another its only link
    (in 1 index of 400), so it is looked again, until all are there or only those that no look can find, as zeros.
    """
    before = -1
    for _ in range(LOOKS):
        again = 0
        for start, block in file.blocks():
            keys = np.arange(start, start + len(block))
            found = index.search(block, min(10, len(file))).keys  # several: of equal rows any may come first
            lost = ~(found == keys[:, None]).any(1)
            if lost.any():
                again += int(lost.sum())
                index.remove(keys[lost])
                index.add(keys[lost], block[lost], threads=1)
        if again in (0, before):
            return
        before = again


def _seal(path: Path) -> str | None:
    """A checksum of an index that nobody else can make; None where there is no file.

    The library that reads an index trusts every number in it: a damaged one ends the process, and one made to hurt
    could do anything. So none is opened but as we wrote it; any other is made again.
    """
    try:
        with open_regular(path) as file:
            seal = hmac.new(_key(), digestmod="sha256")
            while piece := file.read(1 << 24):
                seal.update(piece)
            return seal.hexdigest()
    except OSError:
        return None


def _key() -> bytes:
    """32 bytes that this user alone knows. Where they cannot be kept, an index serves once."""
    place, made = cache_folder() / "key", secrets.token_bytes(32)
    with contextlib.suppress(OSError):
        if len(found := read_bytes(place)) == len(made):
            return found
        place.unlink()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
    return made


def _noted(path: Path) -> Any:
    """What an index was made of."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def draw_sheet(
    picture: str | Path,
    found: list[Found],
    out: Path,
    images: Images | None = None,
    message: Callable[[str], None] = lambda text: None,
) -> Path:
    """A contact sheet of the picture and what was found.

    ``images``, a folder or an array, is needed where the rows are no files, or where these have moved.
    """
    place = images if images is None or _is_folder(images) else open_images(images)
    opened = [_open(f, place) for f in found]
    if gone := sum(image is None for image in opened):
        what = f"{gone} of {len(found)} pictures could not be opened"
        if gone == len(found):
            raise ResslError(f"{what}; say where they are: --images FOLDER, or the array that they came from")
        message(f"{what}; if they are elsewhere, add --images FOLDER")
    captions = [(image, f"{f.cosine:.3f}\n{shown(Path(f.path).name)}") for image, f in zip(opened, found, strict=True)]
    try:
        with Picture(str(picture)) as query:
            return contact_sheet(query.load(), captions, out)
    except OSError as error:
        raise ResslError(f"cannot write {shown(out)}: {error.strerror or error}") from error


def _is_folder(images: Images) -> bool:
    return isinstance(images, (str, os.PathLike)) and os.path.isdir(images)


def _open(found: Found, images: Any) -> Image.Image | None:
    """The picture of a row: at its own path, below a folder, or of a source by its number."""
    try:
        if isinstance(images, Source):
            return Image.fromarray(images.read(found.row)) if found.row < len(images) else None
        with Picture(found.path if images is None else _below(images, found.path)) as picture:
            return picture.load()
    except BrokenImage:
        return None


def _below(folder: str | Path, path: str) -> str:
    """Where a path that was another folder's lies in this one: as much of its end as can be found."""
    parts = Path(path).parts
    ends = (os.path.join(folder, *parts[i:]) for i in range(len(parts)) if parts[i] not in (os.sep, ".."))
    return next((end for end in ends if os.path.exists(end)), path)
