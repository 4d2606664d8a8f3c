"""Folders of picture files: flat, by class, or split into train and test. Files are listed, never opened.

What counts, looking at a folder:
    train/ beside test/, val/, valid/ or validation/  two splits, each of them flat or by class
    train/ alone, or beside unlabelled/               one split
    pictures directly in it                           unlabelled, whatever lies deeper
    two or more subfolders with pictures              one class each, in sorted order
    anything else with pictures below                 unlabelled
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ressl.data.base import FileSource
from ressl.data.decode import EXTENSIONS, shown
from ressl.data.index import listing
from ressl.errors import ResslError

TEST_NAMES = ("test", "val", "valid", "validation")
UNLABELLED_NAMES = ("unlabelled", "unlabeled")
_JUNK = {"__MACOSX", "lost+found"}


def pictures(folder: str, visited: list[str] | None = None) -> Iterator[str]:
    """Every picture file below ``folder``, in no particular order; hidden names are left out, special files named.

    The folders it looked into are added to ``visited``.

    Real folders are walked first and links to folders after, each only if it leads somewhere new: a loop ends, and a
    link to a sibling does not take the sibling's pictures away.
    """
    seen: set[tuple[int, int]] = set()
    todo, links = [folder], list[str]()
    unreadable = []
    while todo or links:
        if not todo:
            links.sort(reverse=True)
            todo.append(links.pop())
        here = todo.pop()
        try:
            found = os.stat(here)
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            if visited is not None:
                visited.append(os.path.abspath(here))
            entries = os.scandir(here)
        except OSError as error:
            unreadable.append(f"{shown(here)} ({error.strerror})")
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _JUNK:
                    continue
                # The kind comes with the listing, so a plain file or folder costs no further system call.
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_symlink():
                    if _leads_to_folder(entry):
                        links.append(entry.path)
                    elif _is_picture(entry.name) and not _is_special(entry.path):
                        yield entry.path
                    elif _is_picture(entry.name):
                        unreadable.append(f"{shown(entry.path)} (not a regular file)")
                elif _is_picture(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry.path
                elif _is_picture(entry.name):
                    unreadable.append(f"{shown(entry.path)} (not a regular file)")
    if unreadable:
        named = sorted(unreadable)
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        warnings.warn(f"left out because they cannot be read: {', '.join(named[:3])}{more}", stacklevel=2)


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_picture(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _is_special(path: str) -> bool:
    """A link to a FIFO, device or socket. A dangling link is none: it is listed, and later reported as broken."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(
            e.name for e in entries if _leads_to_folder(e) and not e.name.startswith(".") and e.name not in _JUNK
        )


def require_folder(root: Path) -> None:
    try:
        with os.scandir(root):
            return
    except FileNotFoundError:
        raise ResslError(f"there is no folder {shown(root)}; give a folder of pictures.") from None
    except NotADirectoryError:
        raise ResslError(f"{shown(root)} is a file; give a folder of pictures, or an array as .npy or .npz.") from None
    except OSError as error:
        raise ResslError(f"the folder {shown(root)} cannot be read: {error.strerror}.") from None


def split_folders(root: Path, test_names: Sequence[str] = TEST_NAMES) -> dict[str, Path]:
    """Where each split lies; without a split layout the folder itself is "train".

    ``test_names`` in order of preference. A class may be called train (bus, car, train): it is a split only beside a
    test folder or alone.
    """
    require_folder(root)
    names = {name.lower(): name for name in _subfolders(root)}
    if "train" not in names:
        return {"train": root}
    train = root / names["train"]
    for name in test_names:
        if name in names:
            return {"train": train, "test": root / names[name]}
    return {"train": train} if names.keys() <= {"train", *UNLABELLED_NAMES} else {"train": root}


def class_names(folder: Path) -> list[str]:
    """The classes of one split, [] when it is unlabelled. Stops at the first picture of each, so it stays quick."""
    if next(_directly_in(folder), None) is not None:
        return []
    classes = _with_pictures(folder)
    return classes if len(classes) > 1 else []  # one class tells nothing apart


def _directly_in(folder: Path) -> Iterator[str]:
    """The names of the pictures that lie in no subfolder."""
    with os.scandir(folder) as entries:
        for e in entries:
            if _is_picture(e.name) and not e.name.startswith(".") and os.path.isfile(e.path):
                yield e.name


def _with_pictures(folder: Path) -> list[str]:
    return [name for name in _subfolders(folder) if next(pictures(str(folder / name)), None) is not None]


def stray_picture(root: Path) -> str | None:
    """The picture beside two subfolders or more that keeps them from being classes, by its name in ``root``."""
    folder = split_folders(root)["train"]
    if len(_with_pictures(folder)) < 2:
        return None
    found = min(_directly_in(folder), default=None)
    return None if found is None else shown(os.path.relpath(folder / found, root))


def labelling(root: Path) -> str:
    """Where the labels come from, or why there are none: nobody asked for either."""
    folder = split_folders(root)["train"]
    if classes := class_names(folder):
        more = f" and {len(classes) - 6:,} more" if len(classes) > 6 else ""
        return f"{len(classes):,} classes by subfolder: {', '.join(map(shown, classes[:6]))}{more}"
    if (stray := stray_picture(root)) is not None:
        return f"unlabelled, because {stray} lies beside the subfolders; without it each of them would be a class"
    return "unlabelled, because there are no two subfolders with pictures"


def open_split(name: str, folder: Path, classes: list[str]) -> FileSource:
    """The pictures of one split, labelled by their first folder when there are ``classes``."""
    require_folder(folder)
    found = listing(str(folder), lambda root, visited: sorted(pictures(root, visited)))
    if not len(found.paths):
        expected = ", ".join(EXTENSIONS)
        raise ResslError(f"there are no pictures in {shown(folder)}; expected files ending in {expected}.")
    if not classes:
        return FileSource(name, found.paths)
    known = {label: place for place, label in enumerate(classes)}
    for label in found.folders:
        if label not in known:
            what = f"the class '{shown(label)}'"
            raise ResslError(f"{shown(folder)} has {what}, which the training pictures do not have; move it away.")
    if (found.first < 0).any():
        label = os.path.basename(found.paths[int(np.argmax(found.first < 0))])
        what = f"the picture {shown(label)} outside any class"
        raise ResslError(f"{shown(folder)} has {what}, which the training pictures do not have; move it away.")
    places = np.array([known[label] for label in found.folders], dtype=np.int64)
    return FileSource(name, found.paths, torch.from_numpy(places[found.first]), classes)


def open_folder(root: Path, split: str, name: str = "folder", test_names: Sequence[str] = TEST_NAMES) -> FileSource:
    folders = split_folders(root, test_names)
    if split not in folders:
        raise ResslError(f"{shown(root)} has no {split} split; it would be a folder '{split}' beside a folder 'train'.")
    # Labels mean the same in every split: those of the training pictures.
    require_folder(folders["train"])
    return open_split(name, folders[split], class_names(folders["train"]))
