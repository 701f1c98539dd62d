"""Recipes: the three products of each layer of a model as data, shared by qtorch and qjax; and published recipes."""

from qcore.recipes.published import RECIPES
from qcore.recipes.recipe import Entry, Recipe

__all__ = ["RECIPES", "Entry", "Recipe"]
