"""Figures of docs/recipes.md: what the runs of the examples of recipes have shown."""

from __future__ import annotations

from examples.recipes_report import RESULTS, compared, read, table


def recipes_compared() -> str:
    """How many hashes both frameworks have in common."""
    return f"{compared(read(RESULTS))}."


def recipes_gpt() -> str:
    """What came out of each recipe of the GPT."""
    return table(read(RESULTS), "gpt")


def recipes_digits() -> str:
    """What came out of each recipe of PreResNet20."""
    return table(read(RESULTS), "preresnet20")
