"""An option with which nothing could be learned is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from ressl.cli import main
from ressl.errors import ResslError
from ressl.methods import METHODS
from ressl.recipes import get_recipe, method_options
from ressl.recipes.ranges import ABOVE_ZERO, AT_LEAST_ZERO, BELOW_ONE, COUNTS, SHARES, check_ranges

NUMBERS = {
    name
    for method in METHODS
    for name, (kind, _) in method_options(method).items()
    if kind in (int, float) or int in get_args(kind)
}


def test_every_number_of_every_method_has_a_range() -> None:
    known = [COUNTS.keys(), ABOVE_ZERO, AT_LEAST_ZERO, BELOW_ONE, SHARES]
    assert set().union(*known) >= NUMBERS
    assert sum(map(len, known)) == len(set().union(*known))  # and one alone


@pytest.mark.parametrize("method", METHODS)
def test_every_recipe_is_within(method: str) -> None:
    for recipe in ("demo", "cifar10", "imagenet-r50"):
        chosen = get_recipe(recipe).replace(method=method)
        check_ranges({name: default for name, (_, default) in method_options(method).items()} | dict(chosen.options))


@pytest.mark.parametrize(
    ("method", "option", "value", "sentence"),
    [
        ("swav", "prototypes", "0", "prototypes must be at least 1, not 0"),
        ("swav", "epsilon", "0", "epsilon must be above 0, not 0.0"),
        ("swav", "sinkhorn-iterations", "0", "sinkhorn_iterations must be at least 1, not 0"),
        ("byol", "hidden-dim", "0", "hidden_dim must be at least 1, not 0"),
        ("simsiam", "predictor-dim", "-1", "predictor_dim must be at least 1, not -1"),
        ("mochi", "mixed", "-3", "mixed must be at least 0, not -3"),
        ("instdisc", "negatives", "0", "negatives must be at least 1, not 0"),
        ("adco", "negatives", "0", "negatives must be at least 1, not 0"),
        ("moco-v2", "temperature", "-0.2", "temperature must be above 0, not -0.2"),
        ("cpc-v2", "context-layers", "-1", "context_layers must be at least 1, not -1"),
        ("localagg", "clusterings", "0", "clusterings must be at least 1, not 0"),
        ("pcl-v2", "granularities", "10,0", "granularities must be at least 1, not 0"),
        ("byol", "teacher-momentum", "1.5", "teacher_momentum must be between 0 and 1, not 1.5"),
        ("instdisc", "bank-momentum", "1", "bank_momentum must be at least 0 and below 1, not 1.0"),
        ("localagg", "bank-momentum", "-0.1", "bank_momentum must be at least 0 and below 1, not -0.1"),
    ],
)
def test_what_is_out_of_range_is_one_sentence(
    method: str, option: str, value: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["pretrain", "demo", "--method", method, f"--{option}", value, "--device", "cpu", "--out", str(out)]
    assert main(words) == 2
    assert capsys.readouterr().err.strip() == f"ressl: {sentence}"
    assert not out.exists()


def test_a_list_of_nothing_is_refused() -> None:
    with pytest.raises(ResslError, match="granularities must name at least one number"):
        check_ranges({"granularities": ()})
