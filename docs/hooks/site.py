"""What the site makes at build time: navigation, equations, excerpts of the source, the table of recorded runs.

A page may say
    $$ ... $$ and $ ... $        equations in LaTeX, if `math: true` stands at its head
    !source losses.py relational the definition itself, so that it cannot differ from the code
    !results                     a table of results/*.json
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# section -> pages. Those that are not there are left out; those that are not named here stand under "More".
NAV: dict[str, list[tuple[str, str]]] = {
    "": [("Start here", "index.md"), ("Tutorial: your own pictures", "tutorial.md")],
    "How to": [
        ("Own data", "how-to/own-data.md"),
        ("Resume", "how-to/resume.md"),
        ("Evaluate and look", "EVALUATION.md"),
        ("Embed and search", "how-to/embed-and-search.md"),
        ("Export and load", "how-to/export.md"),
        ("Use with scikit-learn", "how-to/scikit-learn.md"),
        ("Own method", "how-to/own-method.md"),
        ("Reproduce the paper", "how-to/reproduce.md"),
        ("On a cluster", "CLUSTER.md"),
    ],
    "Concepts": [("The paper beside the code", "concepts.md"), ("Architecture", "ARCHITECTURE.md")],
    "Reference": [
        ("Recipes", "RECIPES.md"),
        ("Methods", "METHODS.md"),
        ("Data", "DATA.md"),
        ("Dependencies", "DEPENDENCIES.md"),
        ("Reliability", "RELIABILITY.md"),
    ],
    "Measured": [
        ("Results", "RESULTS.md"),
        ("Recorded runs", "recorded.md"),
        ("Performance", "PERFORMANCE.md"),
        ("Scaling", "SCALING.md"),
        ("Comparison with others", "comparison.md"),
    ],
    "API": [
        ("ressl", "api/ressl.md"),
        ("Losses and methods", "api/methods.md"),
        ("Parts", "api/nn.md"),
        ("Data and views", "api/data.md"),
        ("Recipes", "api/recipes.md"),
        ("Evaluation", "api/evaluation.md"),
        ("Hand on", "api/hand-on.md"),
    ],
}

# Pages that a checkout may lack; a link to one of them then becomes its words.
LATER = {f"{n}.md" for n in ("METHODS", "CLUSTER", "SCALING", "EVALUATION", "RELIABILITY", "PERFORMANCE", "RESULTS")}


def build_nav(docs: Path) -> list[Any]:
    """The navigation of the pages that are there."""
    here = {p.relative_to(docs).as_posix() for p in docs.rglob("*.md") if p.relative_to(docs).parts[0] != "hooks"}
    nav: list[Any] = []
    for section, pages in NAV.items():
        found = [{title: page} for title, page in pages if page in here]
        nav += found if not section else [{section: found}] if found else []
    named = {page for pages in NAV.values() for _, page in pages}
    more = [{Path(page).stem.replace("-", " ").capitalize(): page} for page in sorted(here - named)]
    return nav + ([{"More": more}] if more else [])


def on_config(config: Any) -> Any:
    config.nav = build_nav(Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    formulas: list[str] = []
    page.meta["formulas"] = formulas
    text = re.sub(r"^!source (\S+) (\S+)$", lambda m: excerpt(m[1], m[2]), markdown, flags=re.MULTILINE)
    text = re.sub(r"^!results$", lambda m: results_table(), text, flags=re.MULTILINE)
    text = _outside_code(text, lambda part: _links(part, page.file.src_uri, Path(config.docs_dir)))
    return _outside_code(text, lambda part: _math(part, formulas)) if page.meta.get("math") else text


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    for number, formula in enumerate(page.meta.get("formulas", ())):
        html = html.replace(f"%%formula{number}%%", formula)
    return html


def _outside_code(text: str, change: Any) -> str:
    """Apply to what is neither in a fence nor in backticks."""
    parts = re.split(r"(^```.*?^```|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def _math(text: str, formulas: list[str]) -> str:
    from latex2mathml.converter import convert

    def keep(latex: str, display: str) -> str:
        made = convert(latex.strip(), display=display)
        formulas.append(f'<span class="formula">{made}</span>' if display == "block" else made)
        return f"%%formula{len(formulas) - 1}%%"

    text = re.sub(r"\$\$(.+?)\$\$", lambda m: keep(m[1], "block"), text, flags=re.DOTALL)
    return re.sub(r"\$(\S(?:[^$\n]*\S)?)\$", lambda m: keep(m[1], "inline"), text)


def _links(text: str, page: str, docs: Path) -> str:
    """Links to files beside the docs folder, and to pages that are not there yet, become their words."""

    def change(match: re.Match[str]) -> str:
        words, target = match[1], match[2].partition("#")[0]
        if "://" in target or not target or match[0].startswith("!"):
            return match[0]
        place = Path(os.path.normpath(docs / Path(page).parent / target))
        outside = docs not in place.parents
        return words if outside or (place.name in LATER and not place.exists()) else match[0]

    return re.sub(r"!?\[([^\]]*)\]\(([^)\s]+)\)", change, text)


def excerpt(file: str, name: str) -> str:
    """The source of a function or class (``Class.method``), as a fenced block."""
    path = ROOT / "src" / "ressl" / file
    source = path.read_text(encoding="utf-8")
    node: Any = ast.parse(source)
    for part in name.split("."):
        node = next(n for n in node.body if getattr(n, "name", None) == part)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = source.splitlines()[first - 1 : node.end_lineno]
    indent = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(line[indent:] for line in lines)
    return f'```python title="src/ressl/{file}"\n{body}\n```'


def results_table() -> str:
    """A row per record, the newest of a recipe last; only what the program wrote."""
    head = "| recipe | method | epochs | seed | kNN | linear, last (best) | images/s | hardware | commit |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|"]
    for path in sorted((ROOT / "results").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("kind") != "pretrain":
            continue
        recipe, done = found["recipe"], found["evaluations"]
        knn, linear = done.get("knn", {}).get("top1"), done.get("linear", {})
        demo = done.get("demo", {}).get("scores", {}).get("ressl", {})
        curve = found.get("curves", {}).get("knn") or [[0, None]]
        knn, last, best = (
            knn or demo.get("knn") or curve[-1][1],
            linear.get("last", demo.get("linear")),
            linear.get("best"),
        )
        shown = "" if last is None else f"{last:.2f}" + ("" if best is None else f" ({best:.2f})")
        machine = found["environment"].get("gpu") or found["environment"].get("cpu") or ""
        cells = [found["name"], recipe["method"], recipe["epochs"], found["seed"]]
        cells += ["" if knn is None else f"{knn:.2f}", shown, f"{found.get('images_per_second') or 0:,.0f}"]
        rows.append("| " + " | ".join(map(str, [*cells, machine, found.get("commit") or ""])) + " |")
    return "\n".join(rows)
