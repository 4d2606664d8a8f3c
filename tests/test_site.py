"""The site builds without a warning, its links lead somewhere, it asks no network, and the tutorial works."""

from __future__ import annotations

import html
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

from ressl import losses
from ressl.cli import main
from ressl.methods import ReSSL
from ressl.nn import EMATeacher, MemoryQueue
from ressl.recipes import Findings, choose_recipe

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []  # what the browser fetches by itself
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(values["href"])


def build(project: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does. Not --quiet: what is not said is not counted, and --strict then lets it pass."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_a_dead_anchor_breaks_the_build(site: Path, tmp_path: Path) -> None:
    """The same settings over two pages of a line each: a build that passes everything would pass them, too."""
    (tmp_path / "docs").mkdir()
    # The hooks and plugins know the real pages only.
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nhooks: []\nplugins: []\nextra_css: []\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## Here\n")
    for place, code in (("here", 0), ("gone", 1)):
        (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[there](other.md#{place})\n")
        done = build(tmp_path, tmp_path / "site")
        assert (done.returncode, "other.md#gone" in done.stderr) == (code, place == "gone"), done.stderr


def test_every_internal_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 15
    checked, wrong = 0, []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            checked += 1
            if not target.is_file() or (parts.fragment and parts.fragment not in pages[target].ids | {"__top"}):
                wrong.append(f"{path.name}: {link}")
    assert checked > 500
    assert not wrong


def test_the_site_asks_no_network(site: Path) -> None:
    for path in site.rglob("*.html"):
        loads = Page(path.read_text(encoding="utf-8")).loads
        assert loads
        assert not [link for link in loads if urlsplit(link).netloc], path.name
    assert not re.search(r"url\((https?:)?//", (site / "style.css").read_text())


def test_equations_are_mathml_and_code_is_the_source(site: Path) -> None:
    page = (site / "concepts.html").read_text(encoding="utf-8")
    assert page.count("<math") > 10
    assert page.count('<span class="formula"><math') == page.count('display="block"') > 3  # scrolled on a phone
    assert "$" not in re.sub(r"<(script|style|pre).*?</\1>", "", page, flags=re.DOTALL)
    assert "%%formula" not in page
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for function in (losses.log_relation, losses.cross_entropy, EMATeacher.update, MemoryQueue.enqueue, ReSSL.forward):
        assert inspect.cleandoc(inspect.getsource(function).splitlines()[-1]) in text


def test_every_page_is_in_the_navigation_and_pages_to_come_find_their_place(tmp_path: Path) -> None:
    site = hooks()
    flat = lambda nav: [p for item in nav for v in item.values() for p in ([v] if isinstance(v, str) else flat(v))]
    here = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    assert sorted(flat(site.build_nav(DOCS))) == here
    for name in ("index.md", "SCALING.md", "BRAND-NEW.md"):
        (tmp_path / name).touch()
    assert flat(site.build_nav(tmp_path)) == ["index.md", "SCALING.md", "BRAND-NEW.md"]


@pytest.mark.parametrize("path", sorted([*DOCS.rglob("*.md"), ROOT / "README.md"]), ids=lambda p: p.name)
def test_links_in_the_sources_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]+`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    later = hooks().LATER
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        if "://" not in target and Path(target).name not in later:
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_no_example_in_a_docstring_is_passed_over() -> None:
    assert not [path.name for path in (ROOT / "src").rglob("*.py") if "+SKIP" in path.read_text(encoding="utf-8")]


# --- the tutorial ---

SMALL = {
    "pretrain": "--device cpu --epochs 2 --warmup-epochs 0.5 --width 4 --hidden-dim 8 --output-dim 8 --batch-size 16 "
    "--bn-groups 2 --queue-size 32 --image-size 16 --knn-every 0 --workers 0",
    "evaluate": "--device cpu",
    "report": "--device cpu",
    "embed": "--device cpu",
    "search": "--device cpu",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks but those marked as not for the test."""
    found = re.findall(r"(<!-- test: skip[^\n]*-->\n)?```(bash|python)\n(.*?)```", page.read_text(), re.DOTALL)
    return [(language, text) for skip, language, text in found if not skip]


def test_the_figures_of_the_tutorial_are_those_of_its_record() -> None:
    page = (DOCS / "tutorial.md").read_text()
    words = " ".join(page.split())
    (name,) = re.findall(r"The record is `(results/.+?)`", page)
    record = json.loads((ROOT / name).read_text())
    knn, linear, svm = (record["evaluations"][key] for key in ("knn", "linear", "svm"))
    *few, whole = svm["by_shots"]
    rows = [("kNN", f"{knn['top1']:.1f}")]
    rows += [("linear classifier, all labels, last epoch (best)", f"{linear['last']:.1f} ({linear['best']:.1f})")]
    for row in few:
        what = f"SVM, {row['shots']} label{'' if row['shots'] == 1 else 's'} per breed"
        rows.append((what, f"{row['mean']:.1f} ± {row['half']:.1f}"))
    rows.append(("SVM, all labels", f"{whole['mean']:.1f}"))
    assert re.findall(r"^\| (.+?) \| ([\d.].*?) \|$", page, re.MULTILINE) == rows
    recipe = record["recipe"]
    assert f"percent of the {knn['test_pictures']:,} test pictures, 37 breeds" in page
    queue = recipe["options"]["queue_size"]
    assert f"batch {recipe['batch_size']}, queue {queue:,} and {recipe['epochs']} epochs" in words
    assert f"It trained for {record['seconds']:.0f} s" in words
    assert f"{recipe['image_size']} px and" in words
    today = choose_recipe("folder", Findings(3680, 160, True))[0].linear.lr
    assert f"a rate of {recipe['linear']['lr']:g}; a recipe chosen today says {today:g}." in words


def test_the_tutorial_works_from_the_first_command_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for part, count in (("train", 16), ("test", 5)):
        for c, name in enumerate(("Abyssinian", "Beagle", "Havanese")):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 120, (24, 20 + i % 3, 3), dtype=np.uint8)
                pixels[..., c] += 130
                Image.fromarray(pixels).save(folder / f"{1582 + i:05d}.jpg")  # one of them is looked for
    ran = []
    for language, text in blocks(DOCS / "tutorial.md"):
        if language == "python":
            exec(compile(text, "tutorial.md", "exec"), {})
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "ressl"
            more = "" if "--resume" in words else SMALL.get(words[0], "")
            more += " --epochs 2" if "linear" in words else ""
            assert main([*words, *shlex.split(more)]) == 0, f"{line}\n{capsys.readouterr().err}"
            ran.append(words[0])
    assert (ran.count("pretrain"), ran.count("views"), ran.count("evaluate")) == (2, 2, 2)
    assert {"embed", "search", "export", "report"} <= set(ran)
    # Nor is there a command in a sentence, where nobody would run it.
    words = re.sub(r"```.*?```", "", (DOCS / "tutorial.md").read_text(), flags=re.DOTALL)
    assert not re.findall(r"`(?:ressl|--)[^`]* [^`]*`", words.replace("`--protocol svm`", ""))
    out = capsys.readouterr().out
    accuracy = re.search(r"([\d.]+)% of the test pictures from 15 labels", out)
    assert accuracy is not None
    assert float(accuracy[1]) > 60  # the colour tells; chance is a third
    made = ("views.png", "weaker.png", "sheet.png", "pets-model/README.md", "pets.pth", "train.paths.txt")
    for name in (*made, "runs/pets/report.html"):
        assert (tmp_path / name).stat().st_size > 100
    assert list(Path("runs/pets/evaluation").glob("svm*.json"))
    assert Image.open("sheet.png").size[0] > 500
