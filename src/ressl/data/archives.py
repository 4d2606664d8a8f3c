"""Official archives: fetched, checked and unpacked, each of them whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ressl.data.decode import shown
from ressl.errors import ResslError

_UNPACKED_LIMIT = 8 << 30  # bytes an archive may declare; the largest unpacked here, STL-10's, takes 3 GB
_TEMPORARY = ".unfinished-"


class Archive(NamedTuple):
    file: str
    holds: str  # the folder inside
    md5: str | None = None
    url: str | None = None  # None: cannot be fetched by a program


def check(path: Path, md5: str | None) -> None:
    if md5 is None:
        return
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise ResslError(f"{shown(path)} is damaged or not the official file (md5 {found}, not {md5}); fetch it again.")


def unpack(root: Path, archive: Archive) -> Path:
    """Unpack ``root/archive.file`` into ``root`` and return the folder it holds."""
    path, target = root / archive.file, root / archive.holds
    with alone(path):  # several processes of a run may start here together
        if target.is_dir():
            return target
        check(path, archive.md5)
        with temporary(root) as folder:
            try:
                _extract_zip(path, folder) if path.suffix == ".zip" else _extract_tar(path, folder)
            except Exception as error:  # a damaged archive can raise anything
                raise ResslError(f"{shown(path)} cannot be unpacked: {shown(str(error))[:200]}.") from None
            if not (folder / archive.holds).is_dir():
                raise ResslError(f"{shown(path)} does not hold the folder '{archive.holds}'; fetch the official file.")
            move_in(folder / archive.holds, target)
    return target


def fetch(root: Path, archive: Archive, advice: str) -> None:
    """Download ``archive`` into ``root``; ``advice`` completes the sentence when that fails."""
    if archive.url is None:
        raise ResslError(advice)
    from torchvision.datasets.utils import download_url  # here, because it takes seconds

    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with temporary(root) as folder:
            download_url(archive.url, str(folder), archive.file, archive.md5)
            move_in(folder / archive.file, root / archive.file)
    # urllib, ssl and torchvision raise a wide choice: no network, no space, a proxy's page instead of the file.
    except Exception as error:
        for folder in made:  # a wrong name must not become an empty folder
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise ResslError(f"{advice} (The download failed: {shown(str(error))[:200]}.)") from None


@contextlib.contextmanager
def temporary(root: Path) -> Iterator[Path]:
    """A folder beside the final place, so that a rename finishes the work; gone afterwards, whatever happens."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=root))
    except OSError as error:
        raise ResslError(f"cannot write into {shown(root)}: {error.strerror}.") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_in(source: Path, target: Path) -> None:
    """The rename that makes finished work visible."""
    try:
        os.rename(source, target)
    except OSError:
        if not target.exists():  # another process was faster: its result is as good
            raise


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock on the archive itself, and clear what a killed process left beside it.

    Where there are no such locks (Windows, some network file systems) the work may be done twice, but never badly.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(held.enter_context(open(path, "rb")), fcntl.LOCK_EX)
            for left in path.parent.glob(_TEMPORARY + "*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _extract_tar(path: Path, folder: Path) -> None:
    with tarfile.open(path) as archive:
        size = 0
        for member in archive:
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"'{member.name}' is a link or a special file")
            _check_name(member.name)
            member.mode = 0o755 if member.isdir() else 0o644
            size += member.size
            if size > _UNPACKED_LIMIT:  # before the rest of a bomb is read
                break
        _check_size(size, folder)
        # "data" refuses all that once more; Python has it from 3.11.4 on.
        more: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **more)


def _check_name(text: str) -> None:
    name = PurePosixPath(text.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or any(":" in part for part in name.parts[:1]):
        raise ValueError(f"'{text}' lies outside the archive's folder")


def _check_size(size: int, folder: Path) -> None:
    if size > _UNPACKED_LIMIT:
        raise ValueError(f"it would unpack to more than {_UNPACKED_LIMIT >> 30} GB")
    if size > (free := shutil.disk_usage(folder).free):
        raise ValueError(f"it unpacks to {size / 1e6:,.0f} MB, and the disk has {free / 1e6:,.0f} MB left")


def _extract_zip(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members), folder)
        for member in members:
            _check_name(member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise ValueError(f"'{member.filename}' is a link")
        archive.extractall(folder)
