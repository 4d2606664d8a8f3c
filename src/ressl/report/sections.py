"""The sections of a page; each takes the runs and gives markup, or nothing where there is nothing to say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ressl.report.charts import Series, line_chart
from ressl.report.contents import Grid, Plane, RunPage
from ressl.report.markup import Html, breakable, data_block, join, table, tag, td, th
from ressl.report.numbers import rows_of, tested_on
from ressl.report.pictures import address, sheet

SIDE = 760  # of a map's drawing
COLOURS = (
    *("#1f6f8b", "#e08e2b", "#5b8c3a", "#b5443c", "#7a5aa6"),
    *("#8a6a4f", "#d277a8", "#7b8794", "#b5a832", "#35a7a0"),
)
_CURVES = (("loss", "Loss", "nats"), ("knn", "kNN accuracy", "%"), ("teacher_entropy", "Teacher entropy", "nats"))
_FEATURES = {"pixels": "raw pixels", "untrained": "untrained backbone"}
_ASIDE = ("seed", "knn_every", "knn_k", "knn_temperature")  # settings that decide no number of the paper's


def name_of(place: int, run: RunPage) -> Html:
    """A run's name, and its colour."""
    return join([tag("span", class_=f"key run{place % 6}"), breakable(run.name)])


def head_of(place: int, run: RunPage, class_: str = "run") -> Html:
    """The heading of a run's column."""
    return th(name_of(place, run), class_=class_)


def remark(runs: Sequence[RunPage], papers: Mapping[str, Mapping[str, str]]) -> str:
    """What must be said of the paper's numbers where a run beside them was not made by the paper's recipe."""
    said = set()
    for run in runs:
        apart = min((_apart(run.recipe, theirs) for theirs in papers.values()), key=len, default={})
        if apart and run.paper:
            said.add(f"with {apart['epochs']} epochs" if list(apart) == ["epochs"] else "with its own recipe")
    return said.pop() if len(said) == 1 else "with its own recipe" if said else ""


def _apart(mine: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str | None]:
    """The settings of a paper's recipe that a run has otherwise."""
    return {k: theirs.get(k) for k in (*mine, *theirs) if k not in _ASIDE and mine.get(k) != theirs.get(k)}


def numbers(runs: Sequence[RunPage], seeds: Mapping[str, str] | None = None, said: str = "") -> Html | None:
    """Every evaluation, a column per run, the paper's beside them.

    ``seeds`` is the mean of each over the runs; ``said`` is what must be said of the paper's, see ``remark``.
    """
    found: dict[str, dict[int, tuple[str, str]]] = {}
    paper: dict[str, dict[str, None]] = {}  # of several recipes, all their numbers, each once
    for i, run in enumerate(runs):
        told = set()
        for name, result in run.evaluations.items():
            for row in rows_of(name, result, run.paper) if name != "demo" else ():  # which has a table of its own
                told.add(row.what)
                found.setdefault(row.what, {})[i] = (row.value, row.beside)
                if row.paper:
                    paper.setdefault(row.what, {})[row.paper] = None
        if "linear" not in told and "linear" in run.paper:
            found.setdefault("linear", {})
            paper.setdefault("linear", {})[f"{run.paper['linear']:.2f}"] = None
    if not found and beginnings(runs) is not None:
        return None
    if not found:
        if any(run.grids for run in runs) and not _labelled(runs):
            ask = tag("code", "ressl evaluate RUN --data FOLDER")
            text = "The pictures have no labels to measure against. With others, one subfolder per class: "
            return tag("p", text, ask, class_="soft")
        ask = tag("code", "ressl evaluate RUN --protocol all")
        return tag("p", "Nothing has been measured yet: ", ask, class_="soft")
    one = len(runs) == 1
    named = [th("result", class_="n")] if one else [head_of(i, run, "run n") for i, run in enumerate(runs)]
    theirs = lambda what: td(" / ".join(paper.get(what, {})), class_="n") if paper else None
    rows = []
    for what, values in found.items():
        cells = [td(_whole(values[i][0]) if i in values else "–", class_="n") for i in range(len(runs))]
        beside = td(values.get(0, ("", ""))[1], class_="soft small") if one else None
        mean = td(_whole(seeds.get(what, "")), class_="n") if seeds else None
        rows.append([td(what), *cells, mean, theirs(what), beside])
    over = th(f"mean of {len(runs)} seeds", class_="n") if seeds else None
    column = th(f"paper, {said}" if said else "paper", class_="n") if paper else None
    note = (
        "Percent of the test pictures unless named otherwise; ± is the 95 % interval of the mean over draws or seeds."
    )
    if any(beside.startswith("best ") for values in found.values() for _, beside in values.values()):
        note += f" The last epoch counts{'; the best one stands beside it' if one else ''}."
    if tested := tested_on([(run.name, run.evaluations) for run in runs]):
        note += f" Tested on {tested}."
    head = [th("measure"), *named, over, column, th() if one else None]
    return tag("div", table(head, rows, "numbers"), tag("p", note, class_="soft small"))


def _whole(value: str) -> str:
    """A number whose spread, or the other end of a range, may stand below it but does not come apart."""
    return value.replace("± ", "±\N{NO-BREAK SPACE}").replace("to ", "to\N{NO-BREAK SPACE}")


def beginnings(runs: Sequence[RunPage]) -> Html | None:
    """Where the features stand against raw pixels and an untrained backbone, if that was measured."""
    blocks = []
    for run in runs:
        scores = run.evaluations.get("demo", {}).get("scores")
        if not scores:
            continue
        rows = [
            [td(_FEATURES.get(name, "this backbone")), *(td(f"{s[k]:.1f}", class_="n") for k in ("knn", "linear"))]
            for name, s in scores.items()
        ]
        head = [th("features" if len(runs) == 1 else run.name), th("kNN", class_="n"), th("linear", class_="n")]
        blocks.append(table(head, rows))
    return tag("div", blocks, class_="side" if len(blocks) > 1 else "narrow") if blocks else None


def curves(runs: Sequence[RunPage]) -> Html | None:
    charts = []
    for metric, title, unit in _CURVES:
        series = [Series(run.name, [(r["epoch"], r[metric]) for r in run.metrics if metric in r]) for run in runs]
        sizes = {run.queue_size for run in runs if run.queue_size}
        ceiling = None
        if metric == "teacher_entropy" and len(sizes) == 1:
            ceiling = ("log K: knows nothing", math.log(sizes.pop()))
        if any(s.points for s in series):
            charts.append(line_chart(title, unit, series, ceiling))
    if not charts:
        return None
    who = [tag("span", name_of(i, run), class_="who") for i, run in enumerate(runs)]
    return tag("div", tag("p", who, class_="small") if len(runs) > 1 else None, tag("div", charts, class_="charts"))


def _grid(grid: Grid) -> Html:
    rows = []
    for q, name in enumerate(grid.names):
        cells = [tag("img", src=address(grid.queries[q]), alt=f"query: {name}", class_="query")]
        for n in range(grid.found.shape[1]):
            wrong = grid.right is not None and not bool(grid.right[q, n])
            marks = {"alt": "another class", "class_": "wrong"} if wrong else {"alt": ""}
            cells.append(tag("img", src=address(grid.found[q, n]), **marks))
        rows.append(tag("div", tag("span", name), cells, class_="row"))
    return tag("div", rows)


def _share(grid: Grid) -> str:
    return "" if grid.right is None else f", {100 * grid.right.float().mean().item():.0f} % of the same class"


def neighbours(runs: Sequence[RunPage]) -> Html | None:
    """The first grid open, the others one tap away."""
    blocks = []
    for i, run in enumerate(runs):
        if not run.grids:
            continue
        first, *others = run.grids
        folded = [tag("details", tag("summary", f"Query: {g.kind} augmentation{_share(g)}"), _grid(g)) for g in others]
        who = [name_of(i, run), ": "] if len(runs) > 1 else []
        blocks.append(tag("div", tag("h3", who, f"Query {first.kind}{_share(first)}"), _grid(first), folded))
    if not blocks:
        return None
    text = "A test picture on the left, then the training pictures whose features are nearest. "
    note = tag("p", text, "A red frame marks another class." if _labelled(runs) else None, class_="soft small")
    return tag("div", note, tag("div", blocks, class_="side" if len(blocks) > 1 else None))


def _labelled(runs: Sequence[RunPage]) -> bool:
    return any(g.right is not None for run in runs for g in run.grids)


def colour(c: int, classes: int) -> str:
    """A class's colour: chosen by hand for ten, from the wheel for more."""
    if classes <= len(COLOURS):
        return COLOURS[c]
    return f"hsl({360 * c // classes} {55 + 20 * (c % 2)}% {42 + 12 * (c % 3)}%)"


def maps(runs: Sequence[RunPage]) -> Html | None:
    blocks = []
    for i, run in enumerate(runs):
        if run.plane is not None:
            title = tag("h3", name_of(i, run)) if len(runs) > 1 else None
            blocks.append(tag("div", title, _map(run.plane, f"map-{i}")))
    if not blocks:
        return None
    text = "Test pictures placed by t-SNE of their features: near means alike. Point at one, or tap, to see it"
    named = any(run.plane is not None and run.plane.classes for run in runs)
    note = tag("p", text, "; choose classes below to see them alone." if named else ".", class_="soft small")
    return tag("div", note, tag("div", blocks, class_="side" if len(blocks) > 1 else None))


def _map(plane: Plane, name: str) -> Html:
    xy = plane.xy - plane.xy.min(0).values
    xy = 14 + xy / xy.max().clamp_min(1e-9) * (SIDE - 28)
    height = int(xy[:, 1].max().item()) + 14
    count = max(int(plane.labels.max()) + 1, len(plane.classes))
    points = []
    for c in sorted(set(plane.labels.tolist())):
        mine = xy[plane.labels == c]
        dots = [tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3.2) for x, y in mine.tolist()]
        points.append(tag("g", dots, fill=colour(c, count), fill_opacity=0.85, data_label=c))
    picture, columns = sheet(plane.pictures)
    drawing = tag("svg", points, tag("circle", class_="ring", r=0), viewBox=f"0 0 {SIDE} {height}", role="img",
                  aria_label="map of the test pictures")  # fmt: skip
    told = {
        "x": [round(x, 1) for x in xy[:, 0].tolist()],
        "y": [round(y, 1) for y in xy[:, 1].tolist()],
        "label": plane.labels.tolist(),
        "names": list(plane.classes),
        "columns": columns,
        "width": plane.pictures.shape[3],
        "height": plane.pictures.shape[2],
    }
    dot = lambda c: tag("svg", tag("circle", cx=5, cy=5, r=5, fill=colour(c, count)), viewBox="0 0 10 10")
    legend = [
        tag("button", dot(c), label, type="button", aria_pressed="false", data_label=c)
        for c, label in enumerate(plane.classes)
    ]
    hidden = tag("img", src=picture, alt="", hidden=True)
    box = tag("div", drawing, hidden, class_="map", data_source=name)
    return tag("div", box, tag("div", legend, class_="legend") if legend else None, data_block(name, told))


def classes(runs: Sequence[RunPage]) -> Html | None:
    blocks, one = [], len(runs) == 1
    for i, run in enumerate(runs):
        found = run.evaluations.get("classes")
        if not found:
            continue
        known = sorted((a, c) for a, c in zip(found["accuracy"], found["classes"], strict=False) if a is not None)
        rows = [[td(c), td(_bar(a)), td(f"{a:.1f}", class_="n")] for a, c in known[:30]]
        blocks.append(tag("div", None if one else tag("h3", name_of(i, run)), table(None, rows, "bars")))
        if "confusion" in found and one:
            blocks.append(_confusion(found["confusion"], found["classes"]))
        elif found.get("mistaken"):
            most = [[td(a), td(b), td(n, class_="n")] for a, b, n in found["mistaken"][:8]]
            blocks.append(table([th("is"), th("taken for"), th("times", class_="n")], most))
    if not blocks:
        return None
    note = tag("p", "By weighted kNN, in percent, the hardest class first.", class_="soft small")
    return tag("div", note, tag("div", blocks, class_="halves" if one else "side"))


def _bar(percent: float) -> Html:
    rect = tag("rect", width=f"{percent:.2f}", height=8, rx=1)
    return tag("svg", rect, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")


def _level(share: float) -> str | None:
    """The shade of a cell."""
    steps = ((70, "c5"), (40, "c4"), (20, "c3"), (8, "c2"), (1, "c1"))
    return next((name for above, name in steps if share > above), None)


def _confusion(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Html:
    rows = []
    for name, line in zip(names, counts, strict=False):
        shares = [100 * n / max(sum(line), 1) for n in line]
        cells = [td("" if (text := f"{s:.0f}") == "0" else text, class_=_level(s)) for s in shares]
        rows.append([th(tag("span", name), class_="h", scope="row", title=name), *cells])
    caption = tag("p", "Row: what it is; column: what it was taken for, % of the row.", class_="soft small")
    head = [th(), *(th(tag("span", name), class_="v", scope="col", title=name) for name in names)]
    return tag("div", caption, table(head, rows, "confusion"))


def recipes(runs: Sequence[RunPage], papers: Mapping[str, Mapping[str, str]]) -> Html:
    """What differs between the runs or from the paper's recipes, then everything."""
    mine, theirs = [run.recipe for run in runs], list(papers.values())
    keys = list(dict.fromkeys(k for column in (*mine, *theirs) for k in column))
    differ = [k for k in keys if len({column.get(k, "") for column in (*mine, *theirs)}) > 1]
    heads = [head_of(i, run) for i, run in enumerate(runs)] if len(runs) > 1 else [th("this run")]
    heads += [th(f"paper: {name}", class_="run") for name in papers]

    def body(wanted: Sequence[str]) -> Html:
        cells = lambda k, columns, kind: [td(column.get(k, "–"), class_=kind) for column in columns]
        rows = [[td(breakable(k)), *cells(k, mine, "value"), *cells(k, theirs, "value soft")] for k in wanted]
        return table([th("setting"), *heads], rows)

    names = " and ".join(f"“{name}”" for name in papers)
    recipe = "recipe" if len(papers) == 1 else "recipes"
    shown = body(differ) if differ else tag("p", f"No setting differs from the paper's {recipe}.")
    between = "between the runs or " if len(runs) > 1 else ""
    lead = tag(
        "p", f"What differs {between}from the paper's {recipe} {names}:" if differ else None, class_="soft small"
    )
    return tag("div", lead, shown, tag("details", tag("summary", f"All {len(keys)} settings"), body(keys)))


def versions(runs: Sequence[RunPage]) -> Html:
    keys = list(dict.fromkeys(k for run in runs for k in run.environment))
    head = [th(), *(head_of(i, run) for i, run in enumerate(runs))] if len(runs) > 1 else None
    rows = [[td(k.replace("_", " ")), *(td(_fact(run, k), class_="value") for run in runs)] for k in keys]
    return tag("div", table(head, rows), class_="narrow" if len(runs) == 1 else None)


def _fact(run: RunPage, name: str) -> str:
    """A fact as text. Earlier runs say of a program run from its source that it is not installed, or nothing at all."""
    value = run.environment.get(name)
    if name == "ressl" and name in run.environment and value in (None, "not installed"):
        return "from source"
    return "–" if value is None else str(value)
