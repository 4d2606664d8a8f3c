"""What ``ressl methods`` shows, against the paper's Tables 1 and 5 to 7 written out a second time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ressl.cli import main
from ressl.recipes.baselines import MULTI_CROP, TABLES

# Backprops, EMA, then the numbers: CIFAR-10, CIFAR-100, STL-10, Tiny ImageNet; ImageNet with ResNet-50 and ResNet-18.
SHOWN = """
    ressl       1x      yes  90.20  63.79  88.25  46.60  69.9  58.1
    moco-v2     1x      yes  86.18  59.51  85.88  43.36  67.5  52.2
    simclr      2x      no   84.92  59.28  85.48  44.38  66.8  -
    byol        2x      yes  85.82  57.75  87.45  42.70  70.6  -
    simsiam     2x      no   88.51  60.00  87.47  37.04  70.0  -
    supervised  1x      no   94.22  74.66  82.55  59.26  76.5  -
    swav        2x+4    no   -      -      -      -      69.1  -
    instdisc    1x      no   -      -      -      -      58.5  -
    localagg    1x      no   -      -      -      -      58.8  -
    mochi       1x      yes  -      -      -      -      68.0  -
    cpc-v2      1x      no   -      -      -      -      63.8  -
    pcl-v2      1x      yes  -      -      -      -      67.6  -
    adco        1x      yes  -      -      -      -      68.6  -
    clsa        2x      yes  -      -      -      -      69.4  -
    clsa-multi  2x+4    yes  -      -      -      -      -     -
    seed        1x      no   -      -      -      -      -     57.6
"""
TABLE_6 = "SwAV 72.7, AdCo 73.2, CLSA-Multi 73.3, ReSSL (4 crops) 73.8, ReSSL (5 crops) 74.7"
PAPER = Path(os.environ.get("RESSL_PAPER", "paper.tex"))  # the source of arXiv:2107.09282, for who has it
TITLES = {  # of the paper's rows
    "ressl": "ReSSL", "moco-v2": "MoCo v2", "simclr": "SimCLR", "byol": "BYOL", "simsiam": "SimSiam",
    "supervised": "Supervised", "swav": "SwAV", "instdisc": "InstDisc", "localagg": "LocalAgg", "mochi": "MoCHi",
    "cpc-v2": "CPC v2", "pcl-v2": "PCL v2", "adco": "AdCo", "clsa": "CLSA-Single", "seed": "SEED",
}  # fmt: skip


def test_the_methods_are_listed_with_the_paper_s_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    rows = [[cell.replace(" ", "") for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    costs, reached = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert [row[0] for row in costs] == [row[0] for row in reached]
    # Without forwards, views and where it was published
    shown = [[*cost[:3], *numbers[1:]] for cost, numbers in zip(costs, reached, strict=True)]
    assert shown == [line.split() for line in SHOWN.strip().splitlines()]
    assert TABLE_6 in out


@pytest.mark.skipif(not PAPER.exists(), reason="RESSL_PAPER names no file")
def test_the_numbers_stand_in_the_paper_s_own_text() -> None:
    rows = [re.sub(r"\\cite\{.*?\}|\(Ours\)|\\hline|\\\\", "", line) for line in PAPER.read_text().splitlines()]
    cells = [[re.sub(r"\\textbf\{(.*?)\}", r"\1", cell).strip() for cell in row.split("&")] for row in rows]
    small = {row[0]: row[3:] for row in cells if len(row) == 7 and row[1] in ("1x", "2x", "-")}
    full = {row[0]: row for row in cells if len(row) == 8 and row[1] == "R50"}
    several = {row[0]: float(row[-1]) for row in cells if len(row) == 7 and row[1] == "R50"}
    slim = {row[0]: float(row[-1]) for row in cells if len(row) == 5 and row[2] == "ResNet-18"}
    for name, numbers in TABLES.items():
        title = TITLES[name]
        if "cifar10" in numbers:
            assert [float(x) for x in small[title.replace("MoCo v2", "MoCoV2")]] == list(numbers.values())[:4]
        if "imagenet-r50" in numbers:
            assert float(full[title][-1]) == numbers["imagenet-r50"]
            shown = next(line.split() for line in SHOWN.splitlines() if line.split()[:1] == [name])
            assert full[title][2:4] == [shown[1].partition("+")[0], shown[2].title()]
        if "imagenet-r18" in numbers:
            assert slim[title] == numbers["imagenet-r18"]
    assert several == MULTI_CROP
    assert len(full) == len(TABLES) - 1  # but SEED
