"""Archives are unpacked whole or not at all, and never outside their folder."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from ressl.data import archives
from ressl.data.archives import Archive, unpack
from ressl.errors import ResslError


def _tar(path: Path, folder: Path) -> str:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_unpacking_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "make" / "set").mkdir(parents=True)
    for i in range(3):
        (tmp_path / "make" / "set" / str(i)).write_bytes(os.urandom(5000))
    root = tmp_path / "root"
    root.mkdir()
    _tar(root / "a.tar.gz", tmp_path / "make" / "set")
    whole = (root / "a.tar.gz").read_bytes()
    (root / "a.tar.gz").write_bytes(whole[:8000])
    with pytest.raises(ResslError, match="cannot be unpacked"):
        unpack(root, Archive("a.tar.gz", "set"))
    (root / "a.tar.gz").write_bytes(whole)
    with pytest.raises(ResslError, match="does not hold the folder 'other'"):
        unpack(root, Archive("a.tar.gz", "other"))

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archives, "move_in", interrupted)
        with pytest.raises(KeyboardInterrupt):
            unpack(root, Archive("a.tar.gz", "set"))
    assert [p.name for p in root.iterdir()] == ["a.tar.gz"]
    assert unpack(root, Archive("a.tar.gz", "set")) == root / "set"
    assert len(list((root / "set").iterdir())) == 3


@pytest.mark.parametrize("newer", [True, False])
def test_odd_permissions_are_not_taken_over(newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a Python whose tarfile has no filters (before 3.11.4), or only behaves like one here."""
    if not newer:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").write_bytes(b"1234")
    (tmp_path / "set" / "a").chmod(0o4777)
    _tar(tmp_path / "a.tar.gz", tmp_path / "set")
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "a.tar.gz").rename(root / "a.tar.gz")
    mode = (unpack(root, Archive("a.tar.gz", "set")) / "a").stat().st_mode & 0o7777
    assert mode & ~0o644 == 0
    assert mode & 0o400


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
    return member


@pytest.mark.parametrize(
    "members",
    [
        [_member("../escaped")],
        [_member("set/../../escaped")],
        [_member("set/link", tarfile.SYMTYPE, "../.."), _member("set/link/escaped")],
        [_member("set/hard", tarfile.LNKTYPE, "../../secret")],
        [_member("set/fifo", tarfile.FIFOTYPE)],
        [_member("set/null", tarfile.CHRTYPE)],
    ],
)
def test_tars_that_escape(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    (tmp_path / "deep" / "secret").write_text("secret")
    with tarfile.open(root / "a.tar", "w") as archive:
        archive.addfile(_member("set", tarfile.DIRTYPE))
        for member in members:
            archive.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(ResslError, match="cannot be unpacked"):
        unpack(root, Archive("a.tar", "set"))
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert found == ["deep", "deep/root", "deep/root/a.tar", "deep/secret"]


@pytest.mark.parametrize(
    "name", ["../escaped", "/tmp/ressl-escaped", "set/../../escaped", "..\\escaped", "C:\\x", "link"]
)
def test_zips_that_escape(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with zipfile.ZipFile(root / "a.zip", "w") as archive:
        archive.writestr("set/fine", "x")
        info = zipfile.ZipInfo(name)
        info.filename = name  # as it is: the constructor tidies
        info.external_attr = (0o120777 if name == "link" else 0o100644) << 16
        archive.writestr(info, "/etc")
    with pytest.raises(ResslError, match=r"outside the archive's folder|is a link"):
        unpack(root, Archive("a.zip", "set"))
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == ["root", "root/a.zip"]
    assert not Path("/tmp/ressl-escaped").exists()
