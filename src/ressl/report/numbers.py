"""What an evaluation's JSON says, as rows for a table: one reader for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_TOLD = ("ks", "rates", "shots", "full", "draws", "fractions")  # stand in the rows anyway


class Row(NamedTuple):
    what: str
    value: str
    beside: str = ""  # spread, best epoch, where
    paper: str = ""

    @property
    def number(self) -> float | None:
        """The value without its spread; None where it is a range."""
        return None if " to " in self.value else float(self.value.split()[0])


def epochs_in_words(done: float, asked: int) -> str:
    """How long a run was trained; one that is not over did not have all of its epochs.

    >>> epochs_in_words(1, 1), epochs_in_words(200, 200), epochs_in_words(6.9, 200)
    ('1 epoch', '200 epochs', '6 of 200 epochs')
    """
    word = "epoch" if asked == 1 else "epochs"
    return f"{asked} {word}" if done >= asked else f"{int(done)} of {asked} {word}"


def tested_on(runs: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]]) -> str:
    """Which pictures the numbers are of, from (run, its evaluations); the runs are named where they differ.

    >>> tested_on([("a", {"knn": {"test": "its own split", "test_pictures": 1200}})])
    '1,200 test pictures (its own split)'
    """
    told = {}
    for name, results in runs:
        on = lambda r: "" if r.get("own_data", True) else f" of {r.get('data', 'other data')}"
        known = [r for r in results.values() if "test" in r and isinstance(r.get("test_pictures"), int)]
        sets = [f"{r['test_pictures']:,} test pictures{on(r)} ({r['test']})" for r in known]
        told[name] = "; ".join(dict.fromkeys(sets))
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{name}: {text}" for name, text in told.items() if text)


def rows_of(name: str, result: Mapping[str, Any], paper: Mapping[str, float] | None = None) -> list[Row]:
    """The rows of one evaluation; ``name`` is its file's name without .json."""
    protocol = str(result.get("protocol", name))
    on = "" if result.get("own_data", True) else f" on {result.get('data', 'other data')}"
    on += (other := _changed(result.get("changed", {})))  # by other settings it is another measure
    theirs = lambda key: f"{paper[key]:.2f}" if paper and key in paper else ""
    beside = "" if on else theirs(protocol)
    if protocol == "knn" and "top1" in result:
        asked = result["settings"]["k"]
        k = f"k = {asked}" if result.get("k", asked) == asked else f"k = {result['k']}, all there are"
        return [Row(f"kNN{on}", f"{result['top1']:.2f}", k, beside)]
    if "scores" in result:  # the demo's, on cached features
        ours, plain, start = (result["scores"][key] for key in ("ressl", "pixels", "untrained"))
        notes = lambda key: f"untrained {start[key]:.2f}, pixels {plain[key]:.2f}"
        shown = {"linear": "linear", "knn": "kNN"}
        return [Row(f"{text}, demo", f"{ours[key]:.2f}", notes(key)) for key, text in shown.items()]
    if "last" in result:
        return [Row(f"{protocol.replace('-', ', ')}{on}", f"{result['last']:.2f}", _best(result), beside)]
    if "by_rate" in result:
        by = lambda r: f"linear, {r['rate'].replace(':', ', lr ')}{on}"
        return [Row(by(r), f"{r['last']:.2f}", _best(r)) for r in result["by_rate"]]
    if "by_k" in result:
        sweep = "  ".join(f"{k}: {value:.1f}" for k, value in result["by_k"])
        return [Row(f"kNN, best k{on}", f"{result['best']:.2f}", f"k = {result['best_k']} ({sweep})")]
    if "by_shots" in result:
        measure = "" if result["measure"] == "top-1" else f" {result['measure']}"
        count = lambda r: "all labels" if r["shots"] is None else f"{r['shots']} per class"
        same = bool(measure) and not other  # the paper's are mAP
        svm = lambda r: theirs(f"svm {result.get('data')} {r['shots'] or 'all'}") if same else ""
        return [Row(f"SVM{measure}, {count(r)}{on}", *_interval(r), svm(r)) for r in result["by_shots"]]
    if "by_fraction" in result:
        label = lambda r: f"fine-tuned, {100 * r['fraction']:g} % of the labels{on}"
        return [Row(label(r), *_interval(r, f"{r['pictures']:,} pictures")) for r in result["by_fraction"]]
    if "to" in result:
        return [row for r in result["to"] for row in _transfer(r, other, theirs(f"svm {r['data']} all"))]
    if "uniformity" in result:
        return [
            Row(f"alignment{on}", f"{result['alignment']:.3f}", "0 is the best"),
            Row(f"uniformity{on}", f"{result['uniformity']:.3f}", "lower is more even"),
            Row(f"effective rank{on}", f"{result['effective_rank']:.1f}", f"of {result['dimensions']} dimensions"),
        ]
    if "mistaken" in result:
        known = [(a, c) for a, c in zip(result["accuracy"], result["classes"], strict=False) if a is not None]
        (low, worst), (high, best_class) = min(known), max(known)
        return [Row(f"worst and best class{on}", f"{low:.1f} to {high:.1f}", f"{worst}; {best_class}")]
    return []


def _best(r: Mapping[str, Any]) -> str:
    return f"best {r['best']:.2f} (epoch {r['best_epoch']})"


def _interval(r: Mapping[str, Any], more: str = "") -> tuple[str, str]:
    notes = [more] if more else []
    if r.get("half") is not None:
        notes.append(f"{r['n']} draws, deviation {r['std']:.2f}")
    if "note" in r:
        notes.append(str(r["note"]))
    spread = "" if r.get("half") is None else f" ± {r['half']:.2f}"
    return f"{r['mean']:.2f}{spread}", "; ".join(notes)


def _changed(settings: Mapping[str, Any]) -> str:
    """Settings that are not the protocol's own, but for those that a row tells anyway.

    >>> _changed({"epochs": 5, "scale": [0.2, 1.0], "draws": 3})
    ', epochs = 5, scale = 0.2 to 1.0'
    """
    text = lambda value: " to ".join(map(str, value)) if isinstance(value, list) else value
    return "".join(f", {key} = {text(value)}" for key, value in settings.items() if key not in _TOLD)


def _transfer(r: Mapping[str, Any], other: str, paper: str) -> list[Row]:
    where = f"{r['test_pictures']:,} test pictures"
    if "mAP" in r:
        return [Row(f"transfer to {r['data']}, SVM mAP", f"{r['mAP']:.2f}", where, paper)]
    best = f"best {r['linear_best']:.2f}; {where}"
    return [
        Row(f"transfer to {r['data']}, linear{other}", f"{r['linear']:.2f}", best),
        Row(f"transfer to {r['data']}, kNN", f"{r['knn']:.2f}", where),
    ]
