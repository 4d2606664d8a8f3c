"""Named recipes. ``RECIPES`` is the whole list."""

from ressl.errors import unknown
from ressl.recipes.demo import DEMO
from ressl.recipes.folder import Findings, choose_recipe
from ressl.recipes.paper import PAPER
from ressl.recipes.recipe import Recipe, method_options

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (DEMO, *PAPER)}


def get_recipe(name: str) -> Recipe:
    """A recipe by name.

    >>> get_recipe("cifar10").options["queue_size"]
    4096
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


__all__ = ["RECIPES", "Findings", "Recipe", "choose_recipe", "get_recipe", "method_options"]
