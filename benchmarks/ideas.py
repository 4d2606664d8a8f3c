"""Why each idea should help, and by how much, as far as that can be computed; what it is worth is measured.

The arithmetic is that of the CIFAR-10 step, written down before the measurement for paired and inside pixels, and
afterwards for the others: 256 pictures, whose convolutions give 0.31 GB of bf16 numbers in a forward,
11.5 million weights, 4 ms a step, 4.3 TB/s to and from memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from layout import number, percent, prose, table
from targets import Record

from ressl.bench.parts import applies
from ressl.engine.accelerate import Ideas

FORWARDS = 4  # that a step's products are worth


class Reason(NamedTuple):
    why: str
    expected: str = ""  # nothing where kernels only run beside each other, or are fewer with the same work


REASONS = {
    "fused norms": Reason(
        "norm, residual add and ReLU in one pass over the activations; without it one operation after the other",
        "+17 %: nine passes over 0.31 GB fewer",
    ),
    "shared results": Reason(
        "the two gradients of a block's result meet inside a kernel that reads them anyway",
        "+3 %: three passes over 0.16 GB fewer",
    ),
    "stem product": Reason(
        "three colours fill three of eight places of a tensor core; 27 of 32, or 12 of 16, are better",
        "+1 %: of 0.6 % of the products over half are zeros",
    ),
    "fused pool": Reason("the activation before the max-pool is the largest of all, and nobody else reads it"),
    "paired pixels": Reason(
        "64 channels fill half of a wide tile of the tensor cores; two neighbouring pixels fill all of it",
        "+1 %: in the linear evaluation 2 %, and a quarter of a step's products are not made so",
    ),
    "inside pixels": Reason(
        "of the products of a 3 x 3 convolution on 4 x 4 pixels 44 in 144 are with the zeros around them",
        "+5 %: a tenth of the products in three passes of four, which are two thirds of a step",
    ),
    "teacher stream": Reason("the teacher is a quarter of the work and fills the gaps of the student"),
    "gradient stream": Reason("weight gradients multiply while norms wait for memory"),
    "bf16 copies": Reason("two kernels instead of a cast of every weight and one of every gradient"),
    "fused update": Reason(
        "gradient norm, SGD and the teacher's average in two passes over the weights instead of six operations",
        "+3 %: nine transfers of 46 MB fewer, beside fewer kernels",
    ),
    "look ahead": Reason(
        "views are many small kernels, none of which fills the card; the networks leave room beside them",
        "+18 % at most: views alone take 0.6 ms",
    ),
    "tried convolutions": Reason("what is fastest depends on what runs beside it, and the library can only guess"),
    "our kernel": Reason("plain operations write a view down several times on the way, and the columns of the stem"),
    "four steps per replay": Reason("fewer replays, in the hope of fewer gaps"),
}


def of_ideas(record: Record) -> Iterator[str]:
    rows, stem = record["ideas"], record["recipe"].get("stem", "")
    whole = number(rows[0]["images_per_second"])
    yield "\n" + prose(
        f"All ideas together: {whole} images/s. One of them changed at a time. What is expected is arithmetic, where",
        "there is any (`benchmarks/ideas.py`, which says of which it was written down before).",
    )
    found = [*ideas(rows, stem)]
    yield from table(("idea", "why", "expected", "images/s", "worth", ""), found)
    missing = [name for name in ideas_of(stem) if not any(name == row[0] for row in found)]
    if missing:
        named = "; ".join(f"{name} ({expected_of(name)})" for name in missing)
        yield prose(f"Not measured in this step yet: {named}.") + "\n"


def ideas_of(stem: str) -> list[str]:
    return [field.name.replace("_", " ") for field in fields(Ideas) if applies(field.name, stem)]


def expected_of(idea: str) -> str:
    return f"expected {found}" if (found := reason(idea).expected) else "nothing to compute"


def of_linear(record: Record) -> Iterator[str]:
    rows = record["linear"]
    whole = rows[0]["hundred_epochs_seconds"]
    what = f"100 epochs of linear evaluation on {rows[0]['pictures']:,} random pictures: {whole:.2f} s"
    yield "\n" + prose(f"{what}, without its start and the test pictures.", *of_ceiling(record))
    changed = []
    for row in rows[1:]:
        (name, off), seconds = _idea(row["linear"]), row["hundred_epochs_seconds"]
        worth = (whole / seconds if off else seconds / whole) - 1
        verdict = "off" if off else "kept"
        changed.append([name, reason(name).why, number(seconds, 2), f"{100 * worth:+.1f} %", verdict])
    if changed:
        yield from table(("idea", "why", "s if changed", "worth", ""), changed)


def of_ceiling(record: Record) -> Iterator[str]:
    """How far linear evaluation can be from the card's matrix products: all that it does is the network's forward."""
    if "ceilings" not in record or "gflops_per_image" not in record:
        return
    row, ceiling = record["linear"][0], record["ceilings"]["matrix_tflops"]
    forward = record["gflops_per_image"] / FORWARDS
    reached = row["images_per_second"] * forward / 1000
    least = row["hundred_epochs_seconds"] * reached / ceiling
    yield f"A forward is {forward:.2f} GFLOP (a step is four: a teacher's, a student's, and a backward like two)."
    yield f"That is {reached:.0f} TFLOP/s, {percent(reached / ceiling)} of the ceiling; by all of it, {least:.1f} s."


def ideas(rows: list[Record], stem: str) -> Iterator[list[object]]:
    speeds = {row["ideas"]: row["images_per_second"] for row in rows}
    whole = rows[0]["images_per_second"]
    for row in rows[1:]:
        name, off = _idea(row["ideas"])
        if (name == "tried convolutions" and not row.get("apart")) or not applies(name.replace(" ", "_"), stem):
            continue  # in one process with the others it has what they tried
        speed, dropped, (why, expected) = row["images_per_second"], row.get("dropped", False), reason(name)
        if "against" in row:
            alike = 100 * (speed / speeds[row["against"]] - 1)
            why += f"; beside the same {row['against']}, which it could not have then, {alike:+.1f} %"
        worth = (speed / whole if dropped else whole / speed) - 1
        kept = "kept" if worth >= 0 else "kept; not faster this time"
        verdict = "off" if off else "dropped" if dropped else kept
        yield [name, why, expected, number(speed), f"{100 * worth:+.1f} %", verdict]


def reason(idea: str) -> Reason:
    return REASONS.get(idea, Reason(""))


def _idea(shown: str) -> tuple[str, bool]:
    """An idea's name, and whether it is measured as one that is off."""
    off = shown.startswith("with ")
    return shown.removeprefix("with " if off else "without "), off
