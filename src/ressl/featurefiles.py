"""Files of features: written from parts so that a file is whole or not there, read block by block.

- ``FEATURES.npy``: N x D float32; beside it ``FEATURES.paths.txt``, a line per row, and ``FEATURES.npy.json``, what
  made it and in which folder
- ``FEATURES.parquet``: columns path and embedding; what made it stands in the schema's metadata
- ``FEATURES.npy.broken.txt``, ``FEATURES.parquet.broken.txt``: pictures that could not be read, if any, each with the
  reason after a tab
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.checkpoints import Checkpoint, DamagedCheckpoint, load_tensors, save
from ressl.data.arrays import check_header
from ressl.data.base import Paths
from ressl.data.decode import shown
from ressl.errors import ResslError
from ressl.files import read_bytes, write_atomically

ENDINGS = (".npy", ".parquet")
BLOCK = 65_536  # rows held in memory at once while reading
Floats = NDArray[np.float32]


def check_ending(path: Path) -> None:
    """Whether features can be written there, as far as the name and the installed packages tell."""
    if path.suffix not in ENDINGS:
        raise ResslError(f"features are written as .npy or .parquet, not {shown(path.name)}")
    if path.suffix == ".parquet":
        _pyarrow()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ResslError(".parquet needs pyarrow: pip install 'ressl[parquet]', or use .npy") from error
    return pyarrow


class Part(NamedTuple):
    """The features of some consecutive samples."""

    ids: Tensor  # those that could be read, int64
    features: Tensor  # n x D float32
    broken: dict[str, str]  # name -> reason


class Parts:
    """The finished parts of a file in the making; a later process goes on where an earlier one was stopped."""

    def __init__(self, out: Path, job: str) -> None:
        self.folder, self.job = out.with_name(out.name + ".parts"), job

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.safetensors"

    def get(self, number: int) -> Part | None:
        """A part that is there, whole, and of this job."""
        if not self._path(number).is_file():
            return None
        with contextlib.suppress(DamagedCheckpoint):
            found = load_tensors(self._path(number))
            if found.facts.get("job") == self.job and found.facts["step"] == number:
                return Part(found.tensors["ids"], found.tensors["features"], found.facts["broken"])
        return None

    def require(self, number: int) -> Part:
        if (part := self.get(number)) is None:
            raise ResslError(f"{shown(self._path(number))} was damaged while it was used; run the same command again")
        return part

    def put(self, number: int, part: Part) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {"ids": part.ids, "features": part.features}
        save(self._path(number), Checkpoint(tensors, {"step": number, "job": self.job, "broken": part.broken}))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _beside(path: Path, ending: str) -> Path:
    return path.with_suffix(ending)


# A path is a line. The few that hold a line break, or look quoted, are written as a JSON string.
def _line(path: str) -> str:
    return json.dumps(path) if "\n" in path or "\r" in path or path.startswith('"') else path


def _unline(line: str) -> str:
    return str(json.loads(line)) if line.startswith('"') else line


def broken_list(path: Path) -> Path:
    return path.with_name(path.name + ".broken.txt")


def write_broken(path: Path, broken: dict[str, str]) -> None:
    """List them; where there are none, the list of an earlier try goes."""
    if not broken:
        return broken_list(path).unlink(missing_ok=True)
    lines = "".join(f"{shown(name)}\t{reason}\n" for name, reason in broken.items())
    write_atomically(broken_list(path), lines.encode())


def read_broken(path: Path) -> dict[str, str]:
    """Name, as it is shown, and reason of each picture that was left out."""
    try:
        lines = read_bytes(broken_list(path)).decode("utf-8", "replace").split("\n")
    except OSError:
        return {}
    return {name: reason for name, _, reason in (line.partition("\t") for line in lines if line)}


def write_features(
    path: Path, parts: Callable[[], Iterator[Part]], name: Callable[[int], str], facts: dict[str, Any]
) -> None:
    """Join ``parts`` (asked for twice) into the file. ``name(id)`` is what a row is called."""
    rows, dim = 0, 0
    for part in parts():
        rows, dim = rows + len(part.ids), part.features.shape[1] or dim
    facts = facts | {"rows": rows, "features_dim": dim}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.suffix == ".parquet":
            _write_parquet(temporary, parts(), name, dim, facts)
        else:
            lines = temporary.with_name(temporary.name + ".paths")
            _write_npy(temporary, lines, parts(), name, rows, dim)
            os.replace(lines, _beside(path, ".paths.txt"))
            write_atomically(_beside(path, ".npy.json"), (json.dumps(facts, indent=2) + "\n").encode())
        os.replace(temporary, path)  # last: without it the rest is made again
    finally:
        for litter in path.parent.glob(f".{path.name}.{os.getpid()}.tmp*"):
            litter.unlink()


def _write_npy(path: Path, lines: Path, parts: Iterator[Part], name: Callable[[int], str], rows: int, dim: int) -> None:
    with open(path, "wb") as file, open(lines, "w", encoding="utf-8", errors="surrogateescape", newline="") as text:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(part.features.numpy().astype("<f4", copy=False).tobytes())
            text.writelines(_line(name(int(i))) + "\n" for i in part.ids)
        for handle in (file, text):
            handle.flush()
            os.fsync(handle.fileno())


def _write_parquet(
    path: Path, parts: Iterator[Part], name: Callable[[int], str], dim: int, facts: dict[str, Any]
) -> None:
    arrow = _pyarrow()
    schema = arrow.schema([("path", arrow.string()), ("embedding", arrow.list_(arrow.float32(), dim))])
    schema = schema.with_metadata({"ressl": json.dumps(facts)})
    with open(path, "wb") as file:
        with arrow.parquet.ParquetWriter(file, schema) as writer:
            for part in parts:
                if not len(part.ids):
                    continue
                # Parquet's strings are Unicode: bytes of a name that are not become question marks.
                names = [os.fsencode(name(int(i))).decode("utf-8", "replace") for i in part.ids]
                flat = arrow.array(part.features.numpy().reshape(-1))
                rows = arrow.FixedSizeListArray.from_arrays(flat, dim)
                writer.write_table(arrow.table([arrow.array(names, arrow.string()), rows], schema=schema))
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class FeatureFile:
    """Features on disk with the name of each row."""

    path: Path
    paths: Sequence[str]
    facts: dict[str, Any]  # what made them; empty for a file from elsewhere
    dim: int

    def __len__(self) -> int:
        return len(self.paths)

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """(first row, rows), all of them in order, at most ``BLOCK`` in memory."""
        if self.path.suffix == ".npy":
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
            for start in range(0, len(array), BLOCK):
                yield start, np.asarray(array[start : start + BLOCK], dtype=np.float32)
            return
        start, arrow = 0, _pyarrow()
        batches = arrow.parquet.ParquetFile(self.path).iter_batches(BLOCK, columns=["embedding"])
        while (batch := self._next(batches, arrow.ArrowException)) is not None:
            if batch.column(0).null_count:
                raise ResslError(f"{shown(self.path)} has rows without an embedding; leave them out of the file")
            rows = np.asarray(batch.column(0).flatten(), dtype=np.float32).reshape(len(batch), self.dim)
            yield start, rows
            start += len(rows)

    def _next(self, batches: Iterator[Any], trouble: type[Exception]) -> Any:
        try:
            return next(batches, None)
        except (trouble, OSError, ValueError) as error:
            raise ResslError(f"{shown(self.path)} is damaged: {shown(str(error))[:160]}; embed it again") from None

    def place(self, path: str) -> str:
        """A path of the time when the file was made, as seen from the folder of now; other names as they are."""
        folder, here = self.facts.get("folder"), os.getcwd()
        if not isinstance(folder, str) or folder == here or os.path.isabs(path):
            return path
        there = os.path.join(folder, path)
        return os.path.relpath(there) if os.path.exists(there) else path

    def read(self) -> Floats:
        """All rows; those of an .npy are mapped, not copied."""
        if self.path.suffix == ".npy":
            array: Floats = np.load(self.path, mmap_mode="r", allow_pickle=False)
            return array
        blocks = [rows for _, rows in self.blocks()]
        return np.concatenate(blocks) if blocks else np.empty((0, self.dim), np.float32)


def open_features(path: str | Path) -> FeatureFile:
    """A file that ``embed`` wrote, or an .npy or .parquet of the same shape from elsewhere."""
    path = Path(path)
    if path.suffix not in ENDINGS or not path.is_file():
        raise ResslError(f"there is no feature file {shown(path)}; make one: ressl embed MODEL IMAGES -o FEATURES.npy")
    try:
        return _open_parquet(path) if path.suffix == ".parquet" else _open_npy(path)
    except (OSError, ValueError, KeyError, EOFError, SyntaxError) as error:
        raise ResslError(f"{shown(path)} cannot be read as features: {shown(str(error))[:160]}") from error


def _open_npy(path: Path) -> FeatureFile:
    check_header(path)
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(f"it holds {array.dtype} of shape {array.shape}, not N x D floats")
    names = _beside(path, ".paths.txt")
    if names.is_file():
        with open(names, encoding="utf-8", errors="surrogateescape", newline="") as file:
            paths = Paths(_unline(line.removesuffix("\n")) for line in file)
    else:
        paths = Paths(f"row {i}" for i in range(len(array)))
    if len(paths) != len(array):
        raise ValueError(f"{len(array)} rows but {len(paths)} names in {names.name}")
    return FeatureFile(path, paths, read_facts(path), array.shape[1])


def _open_parquet(path: Path) -> FeatureFile:
    arrow = _pyarrow()
    try:
        file = arrow.parquet.ParquetFile(path)
        kind = file.schema_arrow.field("embedding").type
        file.schema_arrow.field("path")  # KeyError where there is none; its batches would have no column
        batches = file.iter_batches(BLOCK, columns=["path"])
        paths = Paths(str(name) for batch in batches for name in batch.column(0).to_pylist())
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from error
    if not arrow.types.is_fixed_size_list(kind):
        raise ValueError("its column embedding is no list of a fixed size")
    return FeatureFile(path, paths, read_facts(path), kind.list_size)


def read_facts(path: Path) -> dict[str, Any]:
    """What made a feature file; {} where that is not known."""
    try:
        if path.suffix == ".parquet":
            text = (_pyarrow().parquet.read_schema(path).metadata or {}).get(b"ressl", b"{}")
        else:
            text = read_bytes(_beside(path, ".npy.json"))
        facts = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def no_part(dim: int = 0) -> Part:
    return Part(torch.empty(0, dtype=torch.int64), torch.empty(0, dim), {})
