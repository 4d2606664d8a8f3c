"""Sections of docs/RESULTS.md that belong to no table of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ressl.evaluation.linear import LinearSweepProtocol
from ressl.recipes import get_recipe
from ressl.reproduce.again import again
from ressl.reproduce.grid import Ledger
from ressl.reproduce.pictures import title

FOUR_CROPS = "ReSSL (4 crops) / SimCLR"  # a ratio of Table 8


def four_crops(ratios: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What the time of four crops beside SimCLR's would be by the pixels of their views."""
    if FOUR_CROPS not in [pair["ratio"] for pair in ratios]:
        return
    teacher, *crops = get_recipe("imagenet-r50-4crops").views
    pair = get_recipe("imagenet-r50").replace(method="simclr").views
    ours, theirs = (sum(view.size**2 for view in views) / teacher.size**2 for views in (crops, pair))
    forwards = 3 * ours + 1
    yield (
        f"\nBy pixels alone the last would be {forwards / (3 * theirs):.2f}. The student's crops have {ours:.2f} times "
        f"those of a view of {teacher.size} px, and a backward\ncosts two forwards: with the teacher's forward, "
        f"3 x {ours:.2f} + 1 = {forwards:.2f} of a view, and SimCLR's 3 x {theirs:g} = {3 * theirs:g}. The rest we\n"
        "put down to smaller crops, which fill the card less; it was not measured apart."
    )


def folders(ledger: Ledger, shown: set[int]) -> Iterator[str]:
    """Runs on people's own folders of pictures, by the name of the folder; the newest of each kind."""
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in sorted(ledger, key=lambda r: str(r["finished"])):
        recipe, linear = record["recipe"], record["evaluations"].get("linear", {})
        if recipe["data"] == "folder" and linear.get("own_data"):
            kind = (linear.get("data", ""), recipe["image_size"], recipe["method"], recipe["epochs"], record["seed"])
            newest[kind] = record
    if not newest:
        return
    shown |= {id(record) for record in newest.values()}
    yield "\n## Folders of photographs\n"
    yield "Percent of the pictures in the folder's `test` folder. `FOLDER` is one like it, with a folder per class.\n"
    yield "| folder | px | | epochs | kNN | linear (last) | best | tested on | minutes | commit | command |"
    yield "|---|---:|---|---:|---:|---:|---:|---|---:|---|---|"
    for (data, size, _, epochs, _), r in sorted(newest.items()):
        linear, knn = r["evaluations"]["linear"], r["evaluations"].get("knn", {}).get("top1")
        name, number = title(r) if epochs else "untrained", lambda value: "" if value is None else f"{value:.2f}"
        numbers = " | ".join(map(number, (knn, linear["last"], linear["best"])))
        minutes = f"{r['seconds'] / 60:.1f}" if r.get("jobs", 1) == 1 else ""  # else of several at once
        yield (
            f"| {data} | {size} | {name} | {epochs} | {numbers} | {linear.get('test_input', '')} | {minutes} | "
            f"{r['commit'] or ''} | {in_code(again(r))} |"
        )
    yield "\nWhat the records know of the folders:\n"
    for data in dict.fromkeys(kind[0] for kind in sorted(newest)):
        yield f"- {data}: " + "; ".join(_held([r for kind, r in newest.items() if kind[0] == data]))


def _held(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What a folder held, as far as runs on it tell."""
    told: dict[str, str] = {}
    for r in sorted(records, key=lambda r: str(r["finished"])):
        linear, made = r["evaluations"]["linear"], r["recipe"]
        each, batch = r["steps"] // max(made["epochs"], 1), made["batch_size"]
        if each:
            told["train"] = f"{each * batch:,} to {(each + 1) * batch - 1:,} pictures to learn from"
            told["train"] += f" ({each} whole batches of {batch} an epoch)"
        if "test_pictures" in linear:
            told["test"] = f"{linear['test_pictures']:,} to test on"
        names = r["evaluations"].get("classes", {}).get("classes", [])
        classes = len(names) or made["options"].get("num_classes")
        if classes:
            told["classes"] = f"{classes} classes" + (f" ({', '.join(names[:3])} and so on)" if names else "")
        if "contents" in linear:
            told["contents"] = f"contents {linear['contents']}"
    return (told[key] for key in ("train", "test", "classes", "contents") if key in told)


def in_code(commands: Iterable[str]) -> str:
    """Commands in a cell of a table, where a bar would end it."""
    return ", then ".join("`" + command.replace("|", "\\|") + "`" for command in commands)


def other_ways(ledger: Ledger) -> Iterator[str]:
    """Runs whose linear evaluation was made in more than one way, each way beside the recipe's own."""
    rows = []
    for record in sorted(ledger, key=lambda r: (r["name"], r["recipe"]["epochs"], r["seed"], str(r["finished"]))):
        made = [
            way
            for name, found in sorted(record["evaluations"].items())
            if str(found.get("protocol", name)).startswith("linear") and found.get("own_data") and "settings" in found
            for way in _each_rate(found)
        ]
        own = record["evaluations"].get("linear", {})
        if len(made) > 1 and "settings" in own:
            name = f"{title(record)}, {record['name']}"
            for r in [own, *(way for way in made if way is not own)]:
                numbers = f"{r['last']:.2f} | {r['best']:.2f} | {r['last'] - own['last']:+.2f}"
                start = f"| {name} | {record['recipe']['epochs']} | {record['seed']} | "
                rows.append(f"{start}{_way(r['settings'])} | {r['precision']} | {numbers} | {record['commit'] or ''} |")
    if rows:
        yield "\n## The same backbone, other linear classifiers\n"
        yield (
            "`ressl evaluate RUN --protocol linear linear-sweep`: the recipe's own settings first, the others beside\n"
            "it. Those of a sweep learn from the same views.\n"
        )
        yield "| run | epochs | seed | classifier | features | last | best | beside its own | commit |"
        yield "|---|---:|---:|---|---|---:|---:|---:|---|"
        yield from rows


def _each_rate(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An evaluation by one linear classifier as it is, a sweep as one for each of its rates."""
    if "by_rate" not in found:
        yield found
    for row in found.get("by_rate", []):
        (one,) = LinearSweepProtocol(rates=(row["rate"],)).protocols()
        yield {**found, **row, "settings": {**found["settings"], "schedule": one.schedule, "lr": one.lr}}


def _way(settings: dict[str, Any]) -> str:
    """What tells one linear classifier from another.

    >>> _way({"schedule": "step", "lr": 30.0, "epochs": 100, "nesterov": True, "augment": True, "scale": [0.08, 1.0]})
    'step, lr 30, 100 epochs, crops from 0.08 on, Nesterov'
    """
    views = f"crops from {settings['scale'][0]:g} on" if settings["augment"] else "no crops"
    words = [settings["schedule"], f"lr {settings['lr']:g}", f"{settings['epochs']} epochs", views]
    batch = settings.get("batch_size", 256)
    words += [f"batch {batch}"] * (batch != 256)
    words += ["Nesterov"] * settings["nesterov"] + ["standardised"] * settings.get("standardize", False)
    return ", ".join(words)


def transfers(ledger: Ledger) -> Iterator[str]:
    """Backbones on other data than they learned from; the newest of each kind."""
    newest: dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, Any]]] = {}
    for record in sorted(ledger, key=lambda r: str(r["finished"])):
        recipe, moved = record["recipe"], record["evaluations"].get("transfer", {})
        for there in moved.get("to", []):
            kind = (moved["data"], there["data"], recipe["method"], recipe["epochs"], record["seed"])
            newest[kind] = (record, there)
    if not newest:
        return
    yield "\n## Transfer\n"
    yield (
        "`ressl evaluate RUN --protocol transfer --to DATA`: the frozen backbone on another data set, percent of its\n"
        "test pictures.\n"
    )
    yield "| learned from | epochs | seed | | tested on | labelled | tested | kNN | linear (last) | best | commit |"
    yield "|---|---:|---:|---|---|---:|---:|---:|---:|---:|---|"
    for (data, other, _, epochs, seed), (record, there) in sorted(newest.items()):
        several = f" | {there['mAP']:.2f} (mAP of an SVM) | " if "mAP" in there else None  # labels to a picture
        numbers = several or " | ".join(f"{there[key]:.2f}" for key in ("knn", "linear", "linear_best"))
        yield (
            f"| {data} | {epochs} | {seed} | {title(record)} | {other} | {there['train_pictures']:,} | "
            f"{there['test_pictures']:,} | {numbers} | {record['commit'] or ''} |"
        )


def stopped(ledger: Ledger) -> Iterator[str]:
    """Runs that were killed or stopped and resumed, beside one that was not."""
    if not ledger.kills:
        return
    yield "\n## Stopped on purpose\n"
    yield (
        "`python benchmarks/kills.py`: killed (SIGKILL) or stopped (SIGTERM) at random moments, and resumed. Lost are\n"
        "the steps that had to be made again; losses are compared with those of an undisturbed twin, to the bit.\n"
    )
    yield "| run | epochs | seed | | times | steps lost | equal | apart at most | kNN (twin) | linear | on | commit |"
    yield "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---|---|"
    for r in sorted(ledger.kills, key=lambda r: (r["name"], r["started"])):
        twin, made = r.get("twin"), r["environment"]
        equal, apart = (
            (f"{twin['equal']} of {twin['losses']}", f"{twin['largest_difference']:.1e}") if twin else ("", "")
        )
        beside = f" ({twin['knn']:.2f})" if twin and twin.get("knn") is not None else ""
        knn = "" if r["knn"] is None else f"{r['knn']:.2f}{beside}"
        linear = r["evaluations"].get("linear", {}).get("last")
        how = f"SIG{r['signal']}" + (", `--exact`" if r["exact"] else "")
        yield (
            f"| {r['name']} | {r['recipe']['epochs']} | {r['seed']} | {how} | {len(r['stops'])} | {r['lost']:,} of "
            f"{r['steps']:,} | {equal} | {apart} | {knn} | {'' if linear is None else f'{linear:.2f}'} | "
            f"{made.get('gpu') or 'CPU'} | {made.get('commit') or ''} |"
        )
