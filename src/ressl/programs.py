"""The weights of a torch.export program without opening it.

A .pt2 is a zip. Opening it as PyTorch does would unpickle parts of it; its weights lie in it as plain numbers beside a
JSON that tells their shapes, and ``ressl export`` adds the card. Nothing else is looked at.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ressl.errors import ResslError
from ressl.memory import overfull

_TYPES = {5: torch.int64, 7: torch.float32}  # torch.export's numbers for them


def read_program(path: Path) -> tuple[bytes, dict[str, Tensor]]:
    """(the card's JSON, weights by name) of what ``ressl export --to torch-export`` wrote."""
    if why := overfull(path):
        raise ResslError(f"it is no whole torch.export program of ressl ({why})")
    try:
        with zipfile.ZipFile(path) as archive:
            top = archive.namelist()[0].partition("/")[0]
            if f"{top}/extra/ressl.json" not in archive.namelist():
                raise ResslError("it has no card of ressl; if you trust it use torch.export.load")
            card = archive.read(f"{top}/extra/ressl.json")
            config = json.loads(archive.read(f"{top}/data/weights/model_weights_config.json"))["config"]
            return card, {name: _tensor(archive, f"{top}/data/weights/", entry) for name, entry in config.items()}
    except (OSError, ResslError):
        raise
    except Exception as error:  # zipfile, json and torch raise a wide choice
        raise ResslError(f"it is no whole torch.export program of ressl ({type(error).__name__})") from None


def _tensor(archive: zipfile.ZipFile, folder: str, entry: dict[str, Any]) -> Tensor:
    if entry["use_pickle"]:
        raise ResslError("some of its weights are pickled, which could run code; export it again")
    meta = entry["tensor_meta"]
    numbers = torch.frombuffer(bytearray(archive.read(folder + entry["path_name"])), dtype=_TYPES[meta["dtype"]])
    sizes, strides = ([int(value["as_int"]) for value in meta[key]] for key in ("sizes", "strides"))
    return numbers.as_strided(sizes, strides, int(meta["storage_offset"]["as_int"]))
