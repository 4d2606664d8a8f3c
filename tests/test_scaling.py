"""The arithmetic of docs/SCALING.md: by hand here, by the program there."""

from pathlib import Path

import pytest

from ressl.bench.scaling import Machine, efficiency, traffic
from ressl.recipes import get_recipe

DOC = Path(__file__).parent.parent / "docs" / "SCALING.md"
MACHINE = Machine(step_seconds=0.053)


def test_traffic_by_hand():
    sent = traffic(get_recipe("imagenet-r50"), 8, 32)
    assert sent.gradients == 2 * 7 / 8 * 33_998_400 * 4
    assert sent.statistics == 2 * 7 / 8 * 106_240 * 4
    assert sent.keys == 2 * 7 * 32 * 512 * 4
    assert sent.shuffle == 7 * 32 * 3 * 224 * 224 * 2
    assert traffic(get_recipe("imagenet-r50"), 1, 32).total == 0


def test_one_process_is_fully_efficient_and_more_are_less():
    recipe = get_recipe("imagenet-r50")
    found = [efficiency(traffic(recipe, n, 256), n, MACHINE) for n in (1, 8, 64, 512)]
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)


def test_the_tables_of_the_document_are_computed():
    text, recipe = DOC.read_text(), get_recipe("imagenet-r50")
    for n in (8, 64, 512):
        sent = traffic(recipe, n, 256)
        megabytes = [f"{x / 1e6:,.1f}" for x in (sent.gradients, sent.statistics, sent.keys, sent.shuffle)]
        shares = [f"{100 * efficiency(sent, n, MACHINE, once):.0f} %" for once in (False, True)]
        assert f"| {n} | {' | '.join(megabytes)} | {' | '.join(shares)} |" in text


def test_what_is_not_measured_says_so():
    assert DOC.read_text().count("not measured yet") >= 3
    with pytest.raises(AttributeError):
        Machine(step_seconds=1.0).step_seconds = 2.0  # type: ignore[misc]
