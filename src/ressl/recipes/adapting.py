"""A new run's recipe, adapted to its method: numbers that are too high for few pictures or a small batch, and fields
that follow from another network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ressl.methods import METHODS
from ressl.recipes.recipe import Recipe, method_options
from ressl.recipes.typed import plain


def lowered(recipe: Recipe, changes: Mapping[str, Any]) -> tuple[Recipe, str]:
    """With numbers of its method lowered to fit, but for those that ``changes`` name, and a remark on them, or none."""
    recipe.check()  # else a number would be fitted to one that cannot be
    options = {name: default for name, (_, default) in method_options(recipe.method).items()} | dict(recipe.options)
    given = {*changes, *changes.get("options", ())}
    fewer, remark = METHODS[recipe.method].lowered(options, recipe.batch_size, given)
    return recipe.replace(options=fewer), remark


def inherited(recipe: Recipe, changes: Mapping[str, Any]) -> tuple[Recipe, str]:
    """With the fields that another network asks for, but for those that ``changes`` name, and a remark, or none."""
    asked = recipe.replace(**METHODS[recipe.method].inherited(recipe.options))
    before, wanted = plain(recipe), plain(asked)
    other = [name for name in wanted if wanted[name] != before[name]]
    taken = {name: wanted[name] for name in other if name not in changes}
    words = lambda names: " and ".join(f"{name} {', '.join(f'{x:g}' for x in wanted[name])}" for name in names)
    remarks = [f"as its teacher was trained: {words(taken)}"] if taken else []
    if kept := [name for name in other if name not in taken]:
        remarks.append(f"warning: its teacher was trained with {words(kept)}, and sees other pictures here")
    return recipe.replace(**taken), "; ".join(remarks)
