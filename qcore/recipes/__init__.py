"""Recipes: the three products of each layer of a model as data, shared by qtorch and qjax; and published recipes."""

from typing import TYPE_CHECKING

from qcore.lazy import subpackages

if TYPE_CHECKING:
    from qcore.recipes.published import RECIPES
    from qcore.recipes.recipe import Entry, Recipe

__all__ = ["RECIPES", "Entry", "Recipe"]

# Rules need none of them, and making all recipes takes time.
__getattr__, __dir__ = subpackages(
    __name__, (), {"qcore.recipes.published": ("RECIPES",), "qcore.recipes.recipe": ("Entry", "Recipe")}
)
