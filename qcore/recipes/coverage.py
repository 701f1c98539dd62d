"""The part of a run that a recipe lowers, and what would lower more."""

from __future__ import annotations

from collections import Counter

from qcore.recipes.published import RECIPES
from qcore.recipes.recipe import CONV, LAYER_TYPES, Recipe
from qcore.report import ProductReport, RunReport


def shortfall(recipe: Recipe, run: RunReport) -> str:
    """What a warning says of a recipe that lowers less than half of a run's multiply-adds; "" for all others.

    A product in 16 bits counts only if the recipe has no narrower one. The warning names an entry for the products with
    the largest part of the rest.
    """
    if all(entry.forward is None for entry in recipe.entries):  # it is for functions, which do not multiply
        return ""
    narrow = any(entry.forward is not None and not entry.forward.has_16_bits for entry in recipe.entries)
    part = run.lowered if narrow else run.lowered + run.in_16_bits
    rest = [one for one in run if one.products is None or (narrow and one.products.forward.has_16_bits)]
    kinds: Counter[str] = Counter()
    for one in rest:
        kinds[one.kind] += one.multiply_adds or 0
    if part >= 0.5 or not kinds.total():
        return ""
    kind = kinds.most_common(1)[0][0]
    most = max((one for one in rest if one.kind == kind), key=lambda one: one.multiply_adds or 0)
    share = sum(one.share for one in rest if one.kind == kind)
    wide = f", and {run.in_16_bits:.1%} in 16 bits" if narrow and run.in_16_bits else ""
    return (
        f"the recipe lowers {part:.1%} of the multiply-adds of this model{wide}; {share:.1%} are {kind} products: "
        f"{_remedy(recipe, most)}"
    )


def _remedy(recipe: Recipe, most: ProductReport) -> str:
    """What would lower the largest product that is not lowered."""
    if most.products is not None:
        return "an entry of the recipe has 16 bits for them, as for the first and the last layer"
    if most.kind not in LAYER_TYPES:
        return most.reason
    # An entry that is there, but leaves the product in high precision or cannot lower it, is not what is missing.
    if any(entry._matches(most.path, most.kind) for entry in recipe.entries):
        return most.reason
    name = next((name for name, one in RECIPES.items() if one == recipe), "")
    if most.kind == CONV and f"{name}_conv" in RECIPES:
        return f'RECIPES["{name}_conv"] lowers them, too'
    return f'Entry(layer_type="{most.kind}", forward=Product(...)) in the recipe would lower them'
