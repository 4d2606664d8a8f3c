"""What a method brings with it may be too much for few pictures or a small batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ressl.methods import METHODS
from ressl.recipes.recipe import Recipe, method_options


def lowered(recipe: Recipe, changes: Mapping[str, Any]) -> tuple[Recipe, str]:
    """With numbers of its method lowered to fit, but for those that ``changes`` name, and a remark on them, or none."""
    recipe.check()  # else a number would be fitted to one that cannot be
    options = {name: default for name, (_, default) in method_options(recipe.method).items()} | dict(recipe.options)
    given = {*changes, *changes.get("options", ())}
    fewer, remark = METHODS[recipe.method].lowered(options, recipe.batch_size, given)
    return recipe.replace(options=fewer), remark
