"""From nothing to a number: whole runs by the clock, with kernels made anew and as they were found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from layout import number, prose, table
from targets import Record


def of_cold(records: list[Record], others: list[Record], runs: Iterable[Record]) -> Iterator[str]:
    """Of CIFAR-10's cold runs the newest; beside them all, those of ``others``, too."""
    if not records:
        return
    record = records[0]
    linear, made, speed = record["linear"], record["environment"], record["images_per_second"]
    where = f"{made['gpu']}, torch {made['torch']}, commit {made.get('commit', '?')}"
    yield "\n## From nothing to a number\n"
    yield f"`ressl pretrain cifar10 --then linear` with all its kernels made anew ({where}):"
    yield from table(
        ("", "seconds"),
        [
            ["from the start of the process to its end", number(record["seconds"], 1)],
            ["training, start-up and kNN included", number(record["training_seconds"], 1)],
            [f"- of which at {speed:,.0f} images/s", number(record["pictures"] / speed, 1)],
            ["linear evaluation, 100 epochs", number(linear["seconds"], 1)],
            ["- of which until the first epoch was done", number(linear["start_seconds"], 1)],
        ],
    )
    told = [text for _, text in record.get("timeline", []) if text.startswith("the step was ready")]
    yield prose(
        f"The linear accuracy is then {linear['last']:.2f} % (last epoch).", *(f"It said: {text}." for text in told)
    )
    yield "\n" + prose(
        "All such runs, the newest first; not all cards are equally fast. Below them the newest others that had the",
        "card alone. They took what kernels they found of earlier ones (the compile cache):",
    )
    every = sorted([*records, *others], key=lambda each: str(each["started"]), reverse=True)
    rows = [["made anew", *cold_row(each)] for each in every]
    rows += [["as found", *warm_row(each)] for each in warm(records, runs)]
    headings = ("kernels", "commit", "data", "method", "all, s", "images/s", "start-up and kNN, s", "linear, s")
    yield from table((*headings, "its start, s"), rows)


def cold_row(record: Record) -> list[str]:
    linear, speed = record["linear"], record["images_per_second"]
    start = record["training_seconds"] - record["pictures"] / speed
    seconds = [number(value, 1) for value in (start, linear["seconds"], linear["start_seconds"])]
    method = record["recipe"]["method"] if "recipe" in record else "ressl"
    where = [record["environment"].get("commit", "?"), record["name"]]
    return [*where, method, number(record["seconds"], 1), number(speed), *seconds]


def warm(cold: list[Record], runs: Iterable[Record], most: int = 3) -> list[Record]:
    """The newest whole runs of CIFAR-10 that had the card alone and were not among the cold ones."""
    anew = {(record.get("seed"), record["environment"].get("commit")) for record in cold}
    after = min(str(record["started"]) for record in cold)
    fitting = [
        run for run in runs
        if run["name"] == "cifar10" and run["recipe"]["epochs"] == 200 and run.get("jobs") == 1
        and "linear" in run["evaluations"] and run["images_per_second"] and run["environment"]["device"] == "cuda"
        and (run["seed"], run["commit"]) not in anew and run["finished"] > after
    ]  # fmt: skip
    return sorted(fitting, key=lambda run: str(run["finished"]), reverse=True)[:most]


def warm_row(run: Record) -> list[str]:
    speed, linear = run["images_per_second"], run["evaluations"]["linear"]
    start = run["seconds"] - run["steps"] * run["recipe"]["batch_size"] / speed
    seconds = [number(value, 1) for value in (start, linear["seconds"], linear.get("start_seconds"))]
    return [run["commit"], run["name"], run["recipe"]["method"], "", number(speed), *seconds]
