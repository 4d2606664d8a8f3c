"""A worker that dies while its batch is fetched breaks a connection, and is named all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ressl.data.sources import open_source
from ressl.data.streaming import LostWorker, StreamingLoader
from ressl.data.views import WEAK


@pytest.mark.parametrize("killed", [True, False])
def test_a_connection_breaks(killed: bool, make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("folder", "train", str(make_folder(16)))
    loader = StreamingLoader(source, [WEAK], 4, "cpu", 0, workers=1)
    batches = loader.iterate(0)
    next(batches)

    def broken(self: Any) -> Any:
        if killed:
            os.kill(self._workers[0].pid, signal.SIGKILL)
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_next_data", broken)
    try:
        with pytest.raises(LostWorker if killed else ConnectionResetError):
            next(batches)
    finally:
        loader.close()
