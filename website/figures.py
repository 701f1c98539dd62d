"""Figures of the pages, from result files, the law and tables, between `<!-- name -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType

from website import bits, claims, evidence, kernels, limits, recipes, speed, spellings

FIGURES: dict[str, Callable[[], str]] = {
    name.replace("_", "-"): function
    for module in (bits, claims, evidence, kernels, limits, recipes, speed, spellings)
    for name, function in vars(module).items()
    if isinstance(function, FunctionType) and function.__module__ == module.__name__ and not name.startswith("_")
}
_PART = re.compile(r"(?<=<!-- )(?!end )([\w-]+)( -->\n)(.*?)(?=<!-- end -->)", re.S)


def with_figures(page: str) -> str:
    """A page whose figures are those of the result files."""
    return _PART.sub(lambda part: f"{part[1]}{part[2]}\n{FIGURES[part[1]]()}\n\n", page)
