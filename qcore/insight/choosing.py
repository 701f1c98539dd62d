"""Formats by site: which format each site of a model can have, measured by the model's loss."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from math import inf, isfinite, log10, nan, prod
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_float, check_type, quoted
from qcore.formats.block import BlockScaled
from qcore.formats.number import Number, check_number
from qcore.linalg.product import Product
from qcore.namespace import Array
from qcore.notices import progress
from qcore.recipes import Entry, Recipe

Formats = Mapping[str, str]  # formats' texts by site; sites that are missing are not rounded
Evaluate = Callable[[Formats], tuple[float, Array]]


class Sensitivity(NamedTuple):
    """The effect of a format on a model if one site alone has it.

    Attributes:
        site: the site's name.
        format: the format's text.
        bits: the format's bits, see `bits_per_element`.
        loss: the model's loss.
        difference: the loss less the loss of the model without rounding.
        sqnr: the SQNR of the model's outputs in dB: 10 log10(sum of y^2 / sum of (y - z)^2) for outputs y without
            rounding and z with it, in float64; inf if they are equal, NaN if one is not finite.

    Example:
        >>> (row,) = sensitivity({"a": 2}, ["e4m3fn"], lambda formats: (0.5 if formats else 0.25, 1.0))
        >>> row.site, row.format, row.loss, row.difference, row.sqnr
        ('a', 'e4m3fn', 0.5, 0.25, inf)
    """

    site: str
    format: str
    bits: float
    loss: float
    difference: float
    sqnr: float


@dataclass(frozen=True)
class Point:
    """Formats by site, with the bits and the loss that were measured.

    Attributes:
        bits: mean over all weights of the sites.
        loss: the model's; inf if it was not finite.
        formats: the formats' texts by site.

    Example:
        >>> point = Point(6.0, 0.25, {"0": "e4m3fn", "2": "e2m1fn"})
        >>> point.recipe.products_for("2", "linear").forward.first.number.text
        'e2m1fn'
    """

    bits: float
    loss: float
    formats: dict[str, str] = field(hash=False)

    @property
    def recipe(self) -> Recipe:
        """The formats as a recipe for `lower`; `recipe.text` is its text."""
        return recipe_of(self.formats)


@dataclass(frozen=True)
class Choice:
    """The result of `choose_formats`.

    Attributes:
        chosen: the point of the front with the least loss within the budget.
        front: the points that no other measured point beats in bits and loss, by bits, descending.
        uniform: the points with one format for all sites, by candidate.
        measured: the number of measured points.

    Example:
        >>> losses = {"e4m3fn": 0.25, "e2m1fn": 0.5}
        >>> choice = choose_formats(
        ...     {"0": 8}, losses, lambda formats: (losses.get(formats.get("0"), 0.0), 1.0), 8
        ... )
        >>> (
        ...     [(point.bits, point.loss) for point in choice.front],
        ...     choice.chosen is choice.front[0],
        ...     choice.measured,
        ... )
        ([(8.0, 0.25), (4.0, 0.5)], True, 5)
    """

    chosen: Point
    front: tuple[Point, ...]
    uniform: tuple[Point, ...]
    measured: int

    @property
    def recipe(self) -> Recipe:
        """The chosen formats as a recipe, which `lower` takes."""
        return self.chosen.recipe


def sensitivity(
    sites: Mapping[str, int], candidates: Iterable[Number | str], evaluate: Evaluate
) -> tuple[Sensitivity, ...]:
    """Rounds each site alone to each format.

    Args:
        sites: the number of weights of each site, by name.
        candidates: formats or their texts.
        evaluate: the loss and the outputs of the model with these formats by site.

    Returns:
        A row for each site and format, in the order of the arguments.

    Raises:
        TypeError, ValueError: if there are no sites or candidates, or a candidate is unknown, has no codes or is given
            twice.

    Example:
        >>> from qcore import quantize
        >>> weights = {"a": np.array([1.0, 2.0]), "b": np.array([0.3])}
        >>> def evaluate(formats):
        ...     y = sum(
        ...         quantize(w, formats[site]).sum() if site in formats else w.sum()
        ...         for site, w in weights.items()
        ...     )
        ...     return (y - 3.3) ** 2, y
        >>> [(row.site, row.sqnr) for row in sensitivity({"a": 2, "b": 1}, ["e4m3fn"], evaluate)]
        [('a', inf), ('b', 48.4320785373965)]
    """
    check_sites(sites)
    bits = check_candidates(candidates)
    wide, outputs = evaluate({})
    rows = []
    with progress("each site alone") as done:
        for site in sites:
            for text, width in bits.items():
                loss, rounded = evaluate({site: text})
                rows.append(Sensitivity(site, text, width, loss, loss - wide, sqnr(outputs, rounded)))
                done(len(rows) / (len(sites) * len(bits)))
    return tuple(rows)


def sqnr(wide: Any, rounded: Any) -> float:
    """The ratio of a signal to the change by rounding, in dB; see `Sensitivity`."""
    y, z = (np.asarray(one, np.float64).ravel() for one in (wide, rounded))
    if not (np.isfinite(y).all() and np.isfinite(z).all()):
        return nan
    signal, noise = float(np.sum(y * y)), float(np.sum((y - z) ** 2))
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal else -inf


def choose_formats(
    sites: Mapping[str, int], candidates: Iterable[Number | str], evaluate: Evaluate, budget_bits: float
) -> Choice:
    """The formats by site with the least loss found within a budget of bits.

    The search narrows one site at a time, always where loss grows least per bit saved:

    1. Measure all sites in one format, for each candidate, and each site alone in each candidate.
    2. Begin with each site in the widest candidate; if several are as wide, in the one whose loss alone is least, then
       the first.
    3. A move gives a site a narrower candidate. Its price is the growth of loss divided by the bits that it saves, a
       mean over all weights. At first the growth is estimated from the losses of step 1, later from its last
       measurement.
    4. Take the move of least price (of several the first by site, then by candidate) and measure it from the current
       point. If its price is still the least, make it; else look for the least again. A move whose loss is not finite
       is never made.
    5. Without further moves, go to the narrowest point, the best of several. Give each site in turn the candidate of
       the same bits with the least loss; at equal loss its own candidate, then the first.

    The front has the best of all measured points, uniform points included, so it is never worse than one format for
    all sites. The result depends only on the arguments and on the results of `evaluate`.

    Args:
        sites, candidates, evaluate: as for `sensitivity`.
        budget_bits: the largest mean of bits over all weights.

    Returns:
        The front, and its best point within the budget.

    Raises:
        TypeError, ValueError: as for `sensitivity`, if the budget is below the narrowest candidate's bits, or if no
            point within it has a finite loss.

    Example:
        >>> from qcore import quantize
        >>> weights = {"a": np.array([1.0, 2.0]), "b": np.array([0.3])}
        >>> def evaluate(formats):
        ...     y = sum(
        ...         quantize(w, formats[site]).sum() if site in formats else w.sum()
        ...         for site, w in weights.items()
        ...     )
        ...     return (y - 3.3) ** 2, y
        >>> choice = choose_formats({"a": 2, "b": 1}, ["e4m3fn", "e2m1fn"], evaluate, budget_bits=6)
        >>> choice.chosen.bits, choice.chosen.formats
        (5.333333333333333, {'a': 'e2m1fn', 'b': 'e4m3fn'})
    """
    search = _Search(sites, check_candidates(candidates), evaluate)
    check_budget(budget_bits, search.bits)
    alone = {(row.site, row.format): _finite(row.loss) for row in sensitivity(sites, search.bits, evaluate)}
    uniform = tuple(search.point(dict.fromkeys(sites, text)) for text in search.bits)
    with progress("narrower, site by site") as done:
        widest = max(search.bits.values())
        for part in search.descend(alone):
            done(part / (widest - min(search.bits.values())) if part else 0.0)
        search.exchange()
    front = search.front()
    within = [point for point in front if point.bits <= budget_bits]
    if not within:
        raise ValueError(
            f"no formats of {budget_bits:g} bits have a finite loss; allowed are candidates in which no site overflows"
        )
    return Choice(within[0], front, uniform, len(search.points) + len(alone) + 1)


@dataclass
class _Move:
    """A site's change to a narrower format: the growth of loss, and the step of the search that measured it."""

    site: str
    format: str
    growth: float
    step: int


class _Search:
    """The points measured so far.

    Attributes:
        bits: the bits of the candidates.
        points: the measured points, by the formats of the sites.
    """

    def __init__(self, sites: Mapping[str, int], bits: dict[str, float], evaluate: Evaluate) -> None:
        check_sites(sites)
        self.sites, self.bits, self.evaluate = sites, bits, evaluate
        self.weights = sum(sites.values())
        self.points: dict[tuple[str, ...], Point] = {}

    def point(self, formats: dict[str, str]) -> Point:
        """Measures formats, once."""
        key = tuple(formats.values())
        if key not in self.points:
            bits = sum(self.bits[formats[site]] * size for site, size in self.sites.items()) / self.weights
            self.points[key] = Point(bits, _finite(self.evaluate(formats)[0]), formats)
        return self.points[key]

    def descend(self, alone: Mapping[tuple[str, str], float]) -> Iterator[float]:
        """Goes from the widest formats to the narrowest; yields after each step the number of saved bits."""
        widest = [text for text, bits in self.bits.items() if bits == max(self.bits.values())]
        now = self.point({site: min(widest, key=lambda text: alone[site, text]) for site in self.sites})
        begin, step = now.bits, 0
        moves = [
            _Move(site, text, alone[site, text] - alone[site, now.formats[site]], -1)
            for site in self.sites
            for text in self.bits
        ]
        while moves := [move for move in moves if self.saved(move, now) > 0]:
            move = min(moves, key=lambda move: self.price(move, now))
            if not isfinite(self.price(move, now)):
                return
            after = self.point(now.formats | {move.site: move.format})
            if move.step < step:
                move.growth, move.step = after.loss - now.loss, step
                continue
            for other in moves:
                other.growth -= move.growth if other.site == move.site else 0
            now, step = after, step + 1
            yield begin - now.bits

    def exchange(self) -> None:
        """Gives each site in turn, from the narrowest point on, the best candidate of the same bits."""
        for now in self.front()[-1:]:
            for site in self.sites:
                width = self.bits[now.formats[site]]
                others = [self.point(now.formats | {site: text}) for text, bits in self.bits.items() if bits == width]
                now = min(now, *others, key=lambda point: point.loss)

    def saved(self, move: _Move, now: Point) -> float:
        """How far a move lowers the mean of bits."""
        return (self.bits[now.formats[move.site]] - self.bits[move.format]) * self.sites[move.site] / self.weights

    def price(self, move: _Move, now: Point) -> float:
        """The growth of loss per saved bit; inf if the move saves no bits."""
        return move.growth / self.saved(move, now) if isfinite(move.growth) else inf

    def front(self) -> tuple[Point, ...]:
        """The points that no other point beats, by bits, descending; of equal points the first measured one."""
        found: list[Point] = []
        for point in sorted(self.points.values(), key=lambda point: (point.bits, point.loss)):
            if isfinite(point.loss) and (not found or point.loss < found[-1].loss):
                found.append(point)
        return tuple(reversed(found))


def _finite(loss: float) -> float:
    return float(loss) if isfinite(loss) else inf


_SPECIAL = re.compile(r"([*?[])")


def bits_per_element(number: Number) -> float:
    """The width of a format's codes; for blocks of a fixed size with their share of the block's scale.

    Example:
        >>> from qcore import parse
        >>> [
        ...     bits_per_element(parse(text))
        ...     for text in ("e4m3fn", "mxfp4", "nvfp4", "mx9", "block(8,dim=0)")
        ... ]
        [8, 4.25, 4.5, 9.0, 8]
    """
    width = getattr(number, "element", number).bits
    if not isinstance(number, BlockScaled) or any(size is None for _, size in number.block):
        return width
    micro_exponents = 0 if number.sub_block is None else 1 / prod(size or 1 for _, size in number.sub_block)
    return width + number.scale_bits / prod(size or 1 for _, size in number.block) + micro_exponents


def check_candidates(candidates: Iterable[Number | str]) -> dict[str, float]:
    """The texts of formats, and their bits."""
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
    """Raises if a model has no sites, or a site has no weights."""
    check_type("sites", sites, Mapping, "a dict of names and numbers of weights")
    if not sites:
        raise ValueError("model has no sites; allowed are models with linear layers or convolutions that lower finds")
    for name, size in sites.items():
        if size < 1:
            raise ValueError(f"site {quoted(name)} has {size} weights; allowed are sites that have some")


def check_budget(budget_bits: float, candidates: Mapping[str, float]) -> float:
    """Checks the mean of bits, which must be at least the bits of the narrowest candidate."""
    least = min(candidates.values())
    allowed = f"a number of at least {least:g} bits, the narrowest candidate's"
    return check_float("budget_bits", budget_bits, allowed, lambda bits: least <= bits < inf)


def recipe_of(formats: Mapping[str, str]) -> Recipe:
    """The recipe by which sites round their inputs and weights, to nearest, to formats; sums are exact.

    Example:
        >>> recipe_of({"head": "e4m3fn"}).products_for("head", "linear").forward.text
        'product(operand(e4m3fn),operand(e4m3fn),accumulator=accumulator())'
    """
    return Recipe([Entry(_SPECIAL.sub(r"[\1]", site), None, Product(text, text)) for site, text in formats.items()])


Batch = tuple[object, Sized]  # inputs of a model, and targets


def check_batches(data: Iterable[Batch]) -> list[tuple[Any, Any]]:
    """The batches as a list."""
    allowed = "allowed is a list of batches, pairs (inputs, targets)"
    if not isinstance(data, Iterable) or hasattr(data, "dtype"):
        raise TypeError(f"data={quoted(data)} is a {type(data).__name__}; {allowed}")
    batches = list(data)
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(f"data has a {type(batch).__name__}; {allowed}")
        if len(batch[1]) == 0:
            raise ValueError(f"data has a batch without targets; {allowed} with at least one example")
    if not batches:
        raise ValueError(f"data is empty; {allowed}, at least one")
    return [(inputs, targets) for inputs, targets in batches]


def mean_over(
    batches: Sequence[tuple[Any, Any]], step: Callable[[Any, Any], tuple[float, Any]]
) -> tuple[float, np.ndarray]:
    """The mean loss of all examples and all outputs; `step` returns both for the inputs and targets of a batch.

    Example:
        >>> mean_over([([1, 2], [0, 0]), ([5], [0])], lambda x, y: (sum(x) / len(x), x))
        (2.6666666666666665, array([1., 2., 5.]))
    """
    total, examples, outputs = 0.0, 0, []
    for inputs, targets in batches:
        loss, found = step(inputs, targets)
        total += float(loss) * len(targets)
        examples += len(targets)
        outputs.append(np.asarray(found, np.float64).ravel())
    return total / examples, np.concatenate(outputs)
