"""Lists of files and tar shards hold the same pictures as the folder they were made from."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ressl.data.loaders import RaggedLoader, StreamingLoader, make_loader
from ressl.data.shards import ShardSource
from ressl.data.sources import Source, guess_data, open_source, splits
from ressl.data.views import View
from ressl.errors import ResslError
from ressl.labelled import unlabelled_data
from ressl.recipes import Recipe


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESSL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folder(make_folder: Callable[..., Path], n: int = 12) -> tuple[Path, Source]:
    root = make_folder(n, mixed=True)
    return root, open_source("folder", "train", root)


def assert_same(one: Source, two: Source) -> None:
    assert len(one) == len(two)
    assert one.classes == two.classes
    assert one.labels is not None
    assert two.labels is not None
    assert one.labels.tolist() == two.labels.tolist()
    for i in range(len(one)):
        assert np.array_equal(one.read(i), two.read(i))


# --- lists ---


def write_list(root: Path, source: Source, name: str = "list.txt", separator: str = " ") -> Path:
    path = root.parent / name
    assert source.labels is not None
    lines = [
        f"{Path(source.identify(i)).relative_to(root.parent)}{separator}{source.classes[int(source.labels[i])]}"
        for i in range(len(source))
    ]
    path.write_text("# a comment\n\n" + "\n".join(lines) + "\n")
    return path


def test_a_list_here_names_its_pictures_as_it_does_whatever_editor_wrote_it(
    make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has names and wants features looks for these names."""
    root, source = folder(make_folder)
    monkeypatch.chdir(root.parent)
    names = [str(Path(source.identify(i)).relative_to(root.parent)) for i in range(len(source))]
    Path("list.txt").write_text("\r\n".join(names), encoding="utf-8-sig")
    found = open_source("list", "train", "list.txt")
    assert [found.identify(i) for i in range(len(found))] == names
    assert np.array_equal(found.read(0), source.read(0))


@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_a_list_is_its_files(make_folder: Callable[..., Path], separator: str) -> None:
    root, source = folder(make_folder)
    path = write_list(root, source, separator=separator)
    assert guess_data(path) == "list"
    assert splits("list", path) == {"train"}
    assert_same(source, open_source("list", "train", path))
    assert_same(source, open_source("imagenet", "train", path))  # a named set may lie as a list


def test_names_with_spaces_labels_of_numbers_and_none(tmp_path: Path) -> None:
    path = tmp_path / "l.txt"
    path.write_text("my cat.jpg\na b.png 10\nc.png 9\n/x/y.webp\t2\n")
    found = open_source("list", "train", path)
    assert [found.identify(i) for i in range(4)] == [
        *(str(tmp_path / name) for name in ("my cat.jpg", "a b.png", "c.png")),
        "/x/y.webp",
    ]
    assert found.classes == ["2", "9", "10"]
    assert found.labels is not None
    assert found.labels.tolist() == [-1, 2, 1, 0]


def test_train_and_val_lists_are_two_splits(make_folder: Callable[..., Path]) -> None:
    root, source = folder(make_folder)
    train = write_list(root, source, "train.txt")
    val = write_list(root, source, "val.txt")
    assert splits("list", train) == {"train", "test"}
    assert_same(source, open_source("list", "test", train))
    val.write_text(val.read_text() + "x.png zebra\n")
    with pytest.raises(ResslError, match="zebra"):
        open_source("list", "test", train)


def test_a_folder_of_lists_is_its_lists(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    assert source.labels is not None
    lists = tmp_path / "lists"
    lists.mkdir()
    for name in ("train.txt", "val.txt"):
        label = [source.classes[c] for c in source.labels.tolist()]
        (lists / name).write_text("".join(f"{source.identify(i)}\t{label[i]}\n" for i in range(len(source))))
    assert guess_data(lists) == "list"
    for data in ("list", "imagenet"):  # so 'ressl reproduce --data', a folder per set, takes lists as well
        assert splits(data, lists) == {"train", "test"}
        for split in ("train", "test"):
            assert_same(source, open_source(data, split, lists))
    (root / "train.txt").write_text("elsewhere.png\n")
    assert guess_data(root) == "folder"  # lists beside pictures


@pytest.mark.parametrize(
    ("text", "what"),
    [(b"", "lists no pictures"), (b"a.jpg\nnotes\n", "line 2"), (b"\0\1\2", "no list"), (b"a.exe 3\n", "line 1")],
)
def test_what_is_no_list_gets_a_sentence(tmp_path: Path, text: bytes, what: str) -> None:
    path = tmp_path / "l.txt"
    path.write_bytes(text)
    with pytest.raises(ResslError, match=what):
        open_source("list", "train", path)


# --- shards ---


def write_shards(root: Path, source: Source, into: Path, count: int = 3, cls: bool = True) -> Path:
    """In order, so that labels and pictures can be compared by number."""
    into.mkdir(parents=True)
    assert source.labels is not None
    each = -(-len(source) // count)
    for shard in range(count):
        with tarfile.open(into / f"{shard:04d}.tar", "w") as tar:
            for i in range(shard * each, min((shard + 1) * each, len(source))):
                label = source.classes[int(source.labels[i])]
                data = Path(source.identify(i)).read_bytes()
                name = f"{i:06d}.png" if cls else f"{label}/{i:06d}.png"
                for member, content in ((name, data), (name[:-4] + ".cls", label.encode()) if cls else ("notes", b"x")):
                    info = tarfile.TarInfo(member)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return into


@pytest.mark.parametrize("cls", [True, False])
def test_shards_are_their_files(make_folder: Callable[..., Path], tmp_path: Path, cls: bool) -> None:
    root, source = folder(make_folder)
    shards = write_shards(root, source, tmp_path / "shards", cls=cls)
    assert guess_data(shards) == "shards"
    for _ in range(2):  # read, then from the cache
        found = open_source("shards", "train", shards)
        assert_same(source, found)
        assert found.identify(0) == ("0000.tar/000000.png" if cls else "0000.tar/a/000000.png")
    assert_same(source, open_source("imagenet", "train", shards))


def test_shards_stream_and_resume_as_their_files_do(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    found = open_source("shards", "train", write_shards(root, source, tmp_path / "shards"))
    views = [View(size=8), View(size=6)]
    one, two = (StreamingLoader(s, views, 4, "cpu", seed=1) for s in (source, found))
    for a, b in zip(list(one.iterate(0))[1:], two.iterate(0, 1), strict=True):
        assert torch.equal(a.index, b.index)
        assert a.crops is not None
        assert b.crops is not None
        assert all(torch.equal(x, y) for x, y in zip(a.crops, b.crops, strict=True))
    held = [make_loader(s, views, 4, "cpu", seed=1).loader for s in (source, found)]
    assert all(isinstance(loader, RaggedLoader) for loader in held)
    assert torch.equal(held[0].images, held[1].images)
    assert isinstance(found, ShardSource)
    some = found.take(torch.tensor([5, 2]))
    assert np.array_equal(some.read(1), source.read(2))


def test_a_changed_shard_is_read_anew(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    shards = write_shards(root, source, tmp_path / "shards", count=1)
    assert len(open_source("shards", "train", shards)) == 12
    (shards / "0000.tar").unlink()
    few = open_source("folder", "train", root).take(torch.arange(5))  # type: ignore[attr-defined]
    write_shards(root, few, tmp_path / "again", count=1)
    (tmp_path / "again" / "0000.tar").rename(shards / "0000.tar")
    assert len(open_source("shards", "train", shards)) == 5


def test_two_splits_of_shards(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    write_shards(root, source, tmp_path / "s" / "train")
    write_shards(root, source, tmp_path / "s" / "val", count=1)
    assert splits("shards", tmp_path / "s") == {"train", "test"}
    assert_same(source, open_source("shards", "test", tmp_path / "s"))


def test_hostile_members_are_left_out_and_cut_shards_named(tmp_path: Path, make_folder: Callable[..., Path]) -> None:
    root, source = folder(make_folder)
    shards = write_shards(root, source, tmp_path / "shards", count=1)
    with tarfile.open(shards / "0000.tar", "a") as tar:
        for kind, name in ((tarfile.SYMTYPE, "link.png"), (tarfile.FIFOTYPE, "pipe.png"), (tarfile.CHRTYPE, "dev.png")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    found = open_source("shards", "train", shards)
    assert_same(source, found)
    data = (shards / "0000.tar").read_bytes()
    (shards / "0000.tar").write_bytes(data[:2000])  # cut after it was indexed
    with pytest.raises(ResslError, match="cut short"):
        found.read(11)
    (shards / "0000.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(ResslError, match="cannot be read as an uncompressed tar"):
        open_source("shards", "train", shards)


def retold(shards: Path, change: Callable[[str], list[str]]) -> None:
    """Every shard again, each member under the names that ``change`` gives it."""
    for path in shards.glob("*.tar"):
        with tarfile.open(path) as old:
            held = [(member.name, old.extractfile(member).read()) for member in old]  # type: ignore[union-attr]
        with tarfile.open(path, "w") as tar:
            for old_name, content in held:
                for name in change(old_name):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("test", ["validation", "val"])
def test_splits_are_words_of_the_names_too(make_folder: Callable[..., Path], tmp_path: Path, test: str) -> None:
    """imagenet1k-validation-00.tar must not be trained on."""
    root, source = folder(make_folder)
    into = tmp_path / "s"
    for shard in sorted(write_shards(root, source, into).glob("*.tar")):
        shard.rename(into / f"imagenet1k-train-{shard.name}")
    write_shards(root, source, tmp_path / "t", count=1)
    (tmp_path / "t" / "0000.tar").rename(into / f"imagenet1k-{test}-00.tar")
    assert splits("imagenet", into) == {"train", "test"}
    for split in ("train", "test"):
        assert_same(source, open_source("imagenet", split, into))


def test_what_a_mac_adds_is_no_picture(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    shards = write_shards(root, source, tmp_path / "shards")
    retold(shards, lambda name: [f"._{name}", name])
    assert_same(source, open_source("shards", "train", shards))


def test_where_labels_are_said_a_folder_is_none(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    shards = write_shards(root, source, tmp_path / "shards")
    retold(shards, lambda name: [] if name == "000001.cls" else [f"./images/part/{name}"])
    found = open_source("shards", "train", shards)
    assert found.classes == source.classes
    assert found.labels is not None
    assert source.labels is not None
    assert found.labels.tolist() == [-1 if i == 1 else label for i, label in enumerate(source.labels.tolist())]


@pytest.mark.parametrize("harm", ["flipped", "cut"])
def test_a_damaged_header_is_not_the_end(make_folder: Callable[..., Path], tmp_path: Path, harm: str) -> None:
    root, source = folder(make_folder)
    path = write_shards(root, source, tmp_path / "shards", count=1) / "0000.tar"
    with tarfile.open(path) as tar:
        at = next(member.offset for member in tar if member.name == "000004.png")
    data = bytearray(path.read_bytes())
    data[at + 3] ^= 1
    path.write_bytes(data if harm == "flipped" else data[: at + 100])
    with pytest.raises(ResslError, match=f"header at byte {at:,} is damaged"):
        open_source("shards", "train", path)


def test_shards_without_labels_can_be_looked_at(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root, source = folder(make_folder)
    shards = write_shards(root, source, tmp_path / "shards")
    retold(shards, lambda name: [] if name.endswith(".cls") else [name])
    found = unlabelled_data(Recipe("r", data="shards").replace(image_size=8), str(shards), limit=10)
    assert len(found.train[0]) + len(found.test[0]) == 10
