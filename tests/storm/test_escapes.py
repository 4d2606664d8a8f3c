"""Archives that want to write outside their folder: refused, and nothing of them stays."""

from __future__ import annotations

import io
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from ressl.data import archives
from ressl.data.archives import Archive, unpack
from ressl.errors import ResslError

NAMES = [
    "../out.txt", "good/../../out.txt", "/tmp/ressl-out.txt", "good/../../../out.txt", "..", "../../out.txt",
    "good/x/../../../out.txt", "./../out.txt",
]  # fmt: skip
ZIP_NAMES = [*NAMES, "..\\out.txt", "C:\\out.txt", "c:/out.txt", "\\\\host\\share\\out.txt", "good\\..\\..\\out.txt"]
LINKS = [
    (tarfile.SYMTYPE, "good/link", "/etc/passwd"),
    (tarfile.SYMTYPE, "good/link", "../../out.txt"),
    (tarfile.SYMTYPE, "good", "/tmp"),
    (tarfile.LNKTYPE, "good/link", "../out.txt"),
    (tarfile.LNKTYPE, "good/link", "/etc/passwd"),
    (tarfile.CHRTYPE, "good/null", ""),
    (tarfile.BLKTYPE, "good/disk", ""),
    (tarfile.FIFOTYPE, "good/pipe", ""),
]


def tar(members: list[tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        good = tarfile.TarInfo("good/file.txt")
        good.size = 4
        archive.addfile(good, io.BytesIO(b"good"))
        for member in members:
            data = b"evil" if member.isreg() else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in members:  # written through the link that is there by now
            if member.issym():
                through = tarfile.TarInfo(f"{member.name}/out.txt")
                archive.addfile(through)
    return buffer.getvalue()


def packed(names: list[str], link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("good/file.txt", "good")
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), "evil")
        if link is not None:
            info = zipfile.ZipInfo("good/link")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, link)
    return buffer.getvalue()


def cases() -> dict[str, tuple[str, bytes]]:
    found = {f"tar {name}": ("a.tar.gz", tar([tarfile.TarInfo(name)])) for name in NAMES}
    found |= {f"zip {name}": ("a.zip", packed([name])) for name in ZIP_NAMES}
    for kind, name, target in LINKS:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        found[f"tar {kind!r} {name} to {target}"] = ("a.tar.gz", tar([member]))
    for target in ("/etc/passwd", "../../out.txt"):
        found[f"zip link to {target}"] = ("a.zip", packed([], target))
    found["a header cut"] = ("a.tar.gz", tar([])[:60])
    found["a zip cut"] = ("a.zip", packed([])[:80])
    found["no archive"] = ("a.zip", b"evil")
    found["another folder"] = ("a.zip", packed([]).replace(b"good/", b"evil/"))
    return found


CASES = cases()
assert len(CASES) >= 30


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_written_outside(name: str, tmp_path: Path) -> None:
    file, data = CASES[name]
    root = tmp_path / "inner" / "data"
    root.mkdir(parents=True)
    (root / file).write_bytes(data)
    with pytest.raises(ResslError) as caught:
        unpack(root, Archive(file, "good"))
    assert "\n" not in str(caught.value)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert left == ["inner", "inner/data", f"inner/data/{file}"]
    assert not Path("/tmp/ressl-out.txt").exists()


@pytest.mark.parametrize("file", ["a.tar.gz", "a.zip"])
def test_an_archive_that_would_fill_the_disk_is_refused(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).write_bytes(tar([]) if file == "a.tar.gz" else packed([]))
    monkeypatch.setattr(archives, "_UNPACKED_LIMIT", 3)
    with pytest.raises(ResslError, match="it would unpack to more than"):
        unpack(tmp_path, Archive(file, "good"))
    monkeypatch.setattr(archives, "_UNPACKED_LIMIT", 9)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 8, 1))  # type: ignore[attr-defined]
    with pytest.raises(ResslError, match="and the disk has 0 MB left"):
        unpack(tmp_path, Archive(file, "good"))
    assert [p.name for p in tmp_path.iterdir()] == [file]
    monkeypatch.undo()
    assert (unpack(tmp_path, Archive(file, "good")) / "file.txt").read_text() == "good"
