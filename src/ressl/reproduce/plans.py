"""What is to be made and how long that will take, before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ressl.errors import ResslError, printable
from ressl.reproduce.grid import Job, Ledger
from ressl.reproduce.times import by_step, estimate

CHECKOUT = Path(__file__).resolve().parents[3] / "results"  # of the checkout that the program lies in, if it does
OWN, OWN_STEP, OTHERS, OTHERS_STEP = "", "+", "*", "**"  # what a time goes by


@dataclass(frozen=True)
class Time:
    """About how long a run takes."""

    seconds: float
    by: str = OWN


class Times:
    """Told from a ledger's own records, else from those of the checkout, which are good for nothing but this."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @cached_property
    def others(self) -> Ledger | None:
        """The checkout's ledger, if it is another one and whole."""
        try:
            return None if self.ledger.folder.resolve() == CHECKOUT else Ledger(CHECKOUT)
        except ResslError:
            return None

    def of(self, job: Job) -> Time | None:
        for ledger, runs, step in ((self.ledger, OWN, OWN_STEP), (self.others, OTHERS, OTHERS_STEP)):
            if ledger is None:
                continue
            if (seconds := estimate(ledger, job.recipe)) is not None:
                return Time(seconds, runs)
            if (seconds := by_step(ledger.costs, job.recipe)) is not None:
                return Time(seconds, step)
        return None

    def cost(self, name: str) -> str:
        """Of a whole table of costs, in words."""
        for ledger in filter(None, (self.ledger, self.others)):
            found = ledger.cost(name)
            if found and "took" in found:
                by = "" if ledger is self.ledger else f" by the one in {printable(str(CHECKOUT))}{_made_on([found])}"
                return about(found["took"]) + by
        return "?"

    def source(self, by: str) -> str:
        """What times go by, in words."""
        if by == OWN:
            return "by the ledger's own runs on a GPU"
        there = ""
        if by in (OTHERS, OTHERS_STEP) and self.others is not None:
            records = self.others if by == OTHERS else self.others.costs
            there = f" in {printable(str(CHECKOUT))}{_made_on(records)}"
        return f"by the runs{there}" if by == OTHERS else f"by 'ressl cost'{there}: training alone, on random pictures"


def _made_on(records: Iterable[dict[str, Any]]) -> str:
    cards = sorted({gpu for record in records if (gpu := record["environment"].get("gpu"))})
    return f", made on {' and '.join(cards)}" if cards else ""


def plan(planned: Sequence[Job], todo: Sequence[Job], times: Times, there: str, at_once: int) -> str:
    """All runs, which of them are there, and how long the rest would take."""
    runs = "1 run" if len(planned) == 1 else f"{len(planned)} runs"
    lines = [f"{runs}, {len(planned) - len(todo)} of them {there}, {len(todo)} to make"]
    known = [(job, times.of(job)) for job in todo]
    lines += [f"  {job.name}: " + ("?" if t is None else f"{about(t.seconds)} {t.by}".rstrip()) for job, t in known]
    found = [time for _, time in known if time is not None]
    together = f" one after the other; {at_once} at once share it and take less" if at_once > 1 else ""
    for by in dict.fromkeys(time.by for time in found):
        whole = about(sum(time.seconds for time in found if time.by == by))
        lines.append(f"{by} {whole} {times.source(by)}{together}".lstrip())
        together = ""
    if len(found) < len(todo):
        lines.append(f"{len(todo) - len(found)} whose time is not known yet: no such run on a GPU is on record")
    return "\n".join(lines)


def about(seconds: float) -> str:
    """In the unit that suits it.

    >>> about(0.2), about(89), about(200), about(44_640)
    ('about 1 s', 'about 89 s', 'about 3 min', 'about 12.4 h')
    """
    if seconds >= 7200:
        return f"about {seconds / 3600:,.1f} h"
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {max(seconds, 1):.0f} s"
