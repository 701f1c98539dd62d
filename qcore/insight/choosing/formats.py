"""The sites of a model and the formats that they may have: the arguments of a search."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite, prod

from qcore.arguments import check_type, quoted
from qcore.formats.block import NVFP4, BlockScaled
from qcore.formats.number import Number, check_number
from qcore.linalg.product import Product
from qcore.recipes import Entry, Recipe

SCALE_BITS = {"2^k": 8, "e4m3": 8, "float32": 32}  # of a block's scale
_SPECIAL = re.compile(r"([*?[])")


def bits_per_element(number: Number) -> float:
    """The width of a format's codes; for blocks of a fixed size with their share of the block's scale.

    Raises:
        ValueError: if the format has no codes.

    Example:
        >>> from qcore import parse
        >>> [bits_per_element(parse(text)) for text in ("e4m3fn", "mxfp4", "nvfp4", "block(8,dim=0)")]
        [8, 4.25, 4.5, 8]
    """
    width = getattr(number, "element", number).bits
    if not isinstance(number, BlockScaled | NVFP4) or any(size is None for _, size in number.block):
        return width
    return width + SCALE_BITS[number.scales] / prod(size for _, size in number.block)


def check_candidates(candidates: Iterable[Number | str]) -> dict[str, float]:
    """The texts of formats, and their bits.

    Raises:
        TypeError: if they are no list of formats.
        ValueError: if there is none, one twice, or one that is unknown or has no codes.
    """
    if isinstance(candidates, str | Number) or not isinstance(candidates, Iterable):
        raise TypeError(
            f"candidates={quoted(candidates)} is a {type(candidates).__name__}; allowed is a list of formats"
        )
    found: dict[str, float] = {}
    for candidate in candidates:
        number = check_number(candidate, "candidates")
        if number.text in found:
            raise ValueError(f"candidates has {quoted(number.text)} twice; allowed are different formats")
        found[number.text] = bits_per_element(number)
    if not found:
        raise ValueError("candidates is empty; allowed is at least one format, such as 'e4m3fn'")
    return found


def check_sites(sites: Mapping[str, int]) -> None:
    """Refuses a model without sites, and sites without weights."""
    check_type("sites", sites, Mapping, "a dict of names and numbers of weights")
    if not sites:
        raise ValueError("model has no sites; allowed are models with linear layers or convolutions that lower finds")
    for name, size in sites.items():
        if size < 1:
            raise ValueError(f"site {quoted(name)} has {size} weights; allowed are sites that have some")


def check_budget(budget_bits: float, candidates: Mapping[str, float]) -> float:
    """A mean of bits that the narrowest candidate does not exceed."""
    if isinstance(budget_bits, bool) or not isinstance(budget_bits, int | float):
        raise TypeError(
            f"budget_bits={quoted(budget_bits)} is a {type(budget_bits).__name__}; allowed is a number of bits"
        )
    least = min(candidates.values())
    if not isfinite(budget_bits) or budget_bits < least:
        raise ValueError(f"budget_bits={budget_bits}; allowed are at least {least:g}, the narrowest candidate's bits")
    return budget_bits


def recipe_of(formats: Mapping[str, str]) -> Recipe:
    """The recipe by which sites round their inputs and weights, to nearest, to formats; sums are exact.

    Example:
        >>> recipe_of({"head": "e4m3fn"}).products_for("head", "linear").forward.text
        'product(operand(e4m3fn),operand(e4m3fn),accumulator=accumulator())'
    """
    return Recipe([Entry(_SPECIAL.sub(r"[\1]", site), None, Product(text, text)) for site, text in formats.items()])
