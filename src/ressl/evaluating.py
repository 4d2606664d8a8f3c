"""Evaluation of a run or of a foreign backbone by any protocol; a JSON file each, and nothing computed twice."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from ressl.console import Silent
from ressl.data.contents import contents
from ressl.data.decode import shown
from ressl.data.sources import is_named, label_of, parse_data
from ressl.engine.compiling import wake_compiler
from ressl.engine.loop import Display, device_of
from ressl.engine.processes import current, device_for
from ressl.engine.streams import on_device
from ressl.environment import environment
from ressl.errors import ResslError, unknown
from ressl.labelled import EvaluationData, evaluation_data, features_of, kept_as_is, knn_of, precision_of
from ressl.measuring import ALL, PROTOCOLS, Bench, place_of, settings_of
from ressl.recipes.typed import plain
from ressl.runs import Run
from ressl.subjects import Subject, subject_of

__all__ = [
    "ALL",
    "CHOICES",
    "EvaluationData",
    "bench_of",
    "evaluate",
    "evaluate_each",
    "evaluation_data",
    "features_of",
    "kept_as_is",
    "knn_of",
    "precision_of",
]

CHOICES = tuple(PROTOCOLS)
BEFORE = "measured before (--again measures it anew)"


def evaluate(
    run: Run | str | Path,
    protocol: str = "linear",
    *,
    data: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    again: bool = False,
    display: Display | None = None,
    weights: str = "none",
    image_size: int | None = None,
    out: str | Path | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Evaluate a run, or a backbone ``timm/<model>`` or ``torchvision/<model>``, by one protocol (``CHOICES``).

    The result is written to ``RUN/evaluation/<protocol>.json`` and is not computed again unless asked. ``changes`` are
    settings of the protocol; the rest is as for :func:`evaluate_each`.
    """
    if not isinstance(protocol, str):
        raise ResslError("ressl.evaluate takes one protocol by name; several: ressl.evaluating.evaluate_each")
    found = evaluate_each(
        run, [protocol], data=data, device=device, precision=precision, again=again, display=display,
        weights=weights, image_size=image_size, out=out, changes={protocol: changes},
    )  # fmt: skip
    return next(found)[1]


def evaluate_each(
    what: Subject | Run | str | Path,
    protocols: Sequence[str],
    *,
    data: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    again: bool = False,
    display: Display | None = None,
    weights: str = "none",
    image_size: int | None = None,
    out: str | Path | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(protocol, result) one after the other; backbone, data and features are loaded once for all.

    Args:
        what: a run, its folder, ``timm/<model>`` or ``torchvision/<model>``.
        data: where the run's data lies, or other data: ``NAME``, ``NAME=PATH``, ``PATH``.
        again: compute even what is there.
        weights, image_size, out: of a foreign backbone: ``none``, ``default`` or a file; its input; where results go.
        changes: settings to change, by protocol.
    """
    for name in protocols:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, CHOICES)
    subject = subject_of(what, data, weights, image_size, out)
    bench = bench_of(subject, data, device, precision, display, again)
    # Every mistake in a setting is said before anything is computed.
    asked = {name: settings_of(name, subject.recipe, (changes or {}).get(name, {})) for name in protocols}
    # Pictures that are larger than their views: of others, a kernel of ours makes the views without a compiler.
    larger = (subject.recipe.linear.resize or 0) > subject.recipe.image_size
    if bench.device.type == "cuda" and larger and any(name.startswith("linear") for name in protocols):
        wake_compiler(bench.device)  # while data and features are read
    for name in protocols:
        with on_device(bench.device):
            found = _one(bench, name, asked[name], any_precision=precision == "auto")
        yield name, found


def bench_of(
    subject: Subject,
    data: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    display: Display | None = None,
    again: bool = False,
) -> Bench:
    """The subject with its own data, or with other data."""
    kind, place = subject.recipe.data, subject.place
    if data is not None:
        kind, place = parse_data(data, kind, place)
    where = device_for(device_of(device), current())
    return Bench(subject, kind, place, where, precision_of(precision, where), display or Silent(), again)


def _one(bench: Bench, name: str, asked: Any, any_precision: bool) -> dict[str, Any]:
    subject, recipe, team = bench.subject, bench.recipe, current()
    lying = lambda kind, place: contents(kind, place) if team.leads else None  # one look for all processes
    settings, usual = plain(asked), plain(PROTOCOLS[name].settings(recipe))
    changed = {key: value for key, value in settings.items() if value != usual[key] and key != "to"}
    if "to" in settings:  # names, not places
        pairs = [parse_data(text) for text in settings["to"]]
        settings["to"] = [f"{label_of(*pair)} {place_of(*pair)}/{lying(*pair) or ''}".rstrip("/") for pair in pairs]
    on = "" if bench.own_data else f"-on-{_short(bench.label)}"
    file = _file(name, changed) + on
    made = {
        "step": subject.step,
        "settings": settings,
        "precision": str(bench.precision).removeprefix("torch."),
        "own_data": bench.own_data,
        "data": bench.label,
        "place": place_of(recipe.data, bench.place),
        "contents": lying(recipe.data, bench.place) if PROTOCOLS[name].labels else None,
    }
    if not subject.trained:  # its weights and input are not the folder's
        made |= {"backbone": recipe.backbone, "weights": bench.cache.backbone[:16], "image_size": recipe.image_size}
    made = team.tell(made)  # where each sees its pictures lie must not part the ways of the processes
    settings = made["settings"]
    read = lambda file: team.tell(subject.run.read_evaluation(file) if team.leads else None)
    known = read(file)
    # What a GPU measured in bf16 is as good on a machine without one, unless a precision is asked for; and a set of a
    # name is the same wherever it lies.
    free = {key for key, is_free in (("precision", any_precision), ("place", is_named(recipe.data))) if is_free}
    alike = known is not None and _same(_unlisted(known), _unlisted(made), free | {"precision"})
    if alike and not any_precision and known.get("precision") != made["precision"]:  # both are worth keeping
        changed |= {"precision": made["precision"]}
        file = _file(name, changed) + on
        known = read(file)
    if known is not None and not bench.again and _same(known, made, free):
        bench.display.message(BEFORE)
        return known
    before = _rows_before(known, made, free) if "to" in settings else {}
    if before:  # only what is new is computed; the rest stays beside it
        places = dict(zip(settings["to"], asked.to, strict=True))
        asked = replace(asked, to=tuple(text for place, text in places.items() if bench.again or place not in before))
        if not asked.to:
            bench.display.message(BEFORE)
            return known | _in_order(settings, before)
    protocol, result = PROTOCOLS[name], {"protocol": name, **made, "changed": changed}
    if protocol.labels:
        if bench.data.several and not protocol.several:
            fit = ", ".join(name for name, p in PROTOCOLS.items() if p.several)
            raise ResslError(f"pictures of {bench.label} have several labels, which {name} cannot measure; use {fit}")
        height, width = bench.data.test[0].shape[-2:]
        resize = getattr(asked, "resize", recipe.linear.resize)
        result |= {
            "test": bench.data.note,
            "test_pictures": len(bench.data.test[1]),
            "test_input": f"{height} x {width} px"
            + (f", short side {resize}, centre {recipe.image_size}" if resize else ", as is"),
        }
    _ = bench.backbone
    start = time.monotonic()  # now that everything is loaded
    found = protocol.measure(bench, asked)
    if before:
        new = [place for place, text in places.items() if text in asked.to]
        found |= _in_order(settings, before | dict(zip(new, found["to"], strict=True)))
    result |= found | {"seconds": time.monotonic() - start, "environment": environment(bench.device)}
    if team.leads:
        _keep(bench, file, result)
    return result


def _keep(bench: Bench, file: str, result: Mapping[str, Any]) -> None:
    """Write a result down. In somebody else's folder, which may not be written to, it is shown all the same."""
    run = bench.subject.run
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_evaluation(file, result)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        bench.display.message(f"not kept, because {shown(run.path)} cannot be written to ({error.strerror})")


def _file(name: str, changed: Mapping[str, Any]) -> str:
    """What a result's file is called: other settings are another measure, beside the protocol's own.

    >>> _file("knn", {}), _file("linear", {"epochs": 5, "scale": [0.2, 1.0]})
    ('knn', 'linear-epochs=5-scale=0.2,1.0')
    """
    text = lambda value: ",".join(map(str, value)) if isinstance(value, list) else str(value)
    told = "".join(f"-{key}={text(value)}" for key, value in changed.items())
    return name + (told if len(told) <= 80 else f"-{hashlib.sha256(told.encode()).hexdigest()[:12]}")


def _short(label: str) -> str:
    """As much of it as a file's name has room for, counted in bytes, of which a letter may take four."""
    return os.fsencode(label)[:80].decode(errors="ignore")


def _same(known: Mapping[str, Any], made: Mapping[str, Any], free: Set[str]) -> bool:
    """Whether a result is of what is asked for, but for ``free``. Pictures that are gone are taken to be the same."""
    free = free | ({"contents"} if None in (known.get("contents"), made["contents"]) else set())
    return all(known.get(key) == value for key, value in made.items() if key not in free)


def _unlisted(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without the list of a transfer, to which more may be added."""
    settings = result.get("settings")
    settings = {k: v for k, v in settings.items() if k != "to"} if isinstance(settings, dict) else settings
    return {**result, "settings": settings}


def _rows_before(known: dict[str, Any] | None, made: Mapping[str, Any], free: Set[str]) -> dict[str, Any]:
    """The rows of an earlier transfer that differs in its list alone, by data and place."""
    match known:
        case {"settings": {"to": [*places]}, "to": [*rows]} if known is not None and len(places) == len(rows):
            if _same(_unlisted(known), _unlisted(made), free):
                found = dict(zip(map(str, places), rows, strict=True))
                to = made["settings"]["to"]
                here = {name.partition("/")[0] for name in to}  # where other pictures may lie by now
                return {name: row for name, row in found.items() if name in to or name.partition("/")[0] not in here}
    return {}


def _in_order(settings: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Both lists of a transfer: what was asked for, then what was known before."""
    order = dict.fromkeys([*settings["to"], *rows])
    return {"settings": {**settings, "to": list(order)}, "to": [rows[place] for place in order]}
