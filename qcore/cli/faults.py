"""Units that add products with one fault each: what a file of vectors must see, and what `check` says of a wrong unit.

A fault is a change in one line of a unit: another parameter of the accumulator, another rounding, or a change of the
operands, of the addend or of the result. Its words end the sentence "the results are those of a unit that ..".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from qcore.arrays import decode, quantize
from qcore.cli.properties import subnormal
from qcore.cli.sums import FLOAT32_NUMBER, Operands, Unit
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.law.rounding import Rounding
from qcore.linalg import law
from qcore.linalg.accumulator import ALL, NORMALIZED, PRODUCTS, Accumulator
from qcore.linalg.forms import FORWARD, MatrixForm
from qcore.linalg.namespace import Float64

MOST_ROWS = 1000  # of a file in which faults are looked for
_LARGEST = float(np.finfo(np.float32).max)
_MODES = ("nearest", "nearest_away", "toward_zero", "away", "up", "down", "odd")
Change = Callable[[np.ndarray], np.ndarray]


class Twice(Float64):
    """Rounds sums to nearest with two more bits first."""

    def rounded(self, x: np.ndarray, number: Any, *others: Any) -> np.ndarray:  # type: ignore[override]
        digits = getattr(number, "man", 23)
        wider = BinaryFloat(11, min(digits + 2, 52))
        return super().rounded(quantize(x, wider, "nearest"), number, *others)


class Flushing(Float64):
    """Makes sums that are subnormal in the accumulator zero."""

    def rounded(self, x: np.ndarray, number: Any, *others: Any) -> np.ndarray:  # type: ignore[override]
        found = super().rounded(x, number, *others)
        return np.where(subnormal(found, number), 0.0, found)


@dataclass(frozen=True)
class Fault:
    """A unit with one fault.

    Attributes:
        words: what the unit does.
        accumulator: its accumulator.
        a, b, c: what happens to the factors of each row, shape (rows, terms), and to the addends.
        result: what happens to the results.
        late: True if addends are added to the results, in float32.
        xp: the array namespace in which it adds.
    """

    words: str
    accumulator: Accumulator
    a: Change = lambda x: x
    b: Change = lambda x: x
    c: Change = lambda x: x
    result: Change = lambda x: x
    late: bool = False
    xp: type[Float64] = Float64

    def results(self, unit: Unit, given: Operands) -> np.ndarray:
        """The bits of the results in place of a unit's."""
        a, b = (decode(x, number) for x, number in zip((given.a, given.b), unit.numbers, strict=True))
        with np.errstate(all="ignore"):
            a, b, c = self.a(a), self.b(b), self.c(unit.started(given.c))
            left, right = a[:, None, :], b[:, :, None]
            sums = unit.product.sums(MatrixForm(), FORWARD, left.shape, right.shape, right.shape, True)
            sums = law.Sums(self.accumulator, False, least=sums.least)
            addend = np.zeros_like(c) if self.late else c
            found = law.multiply(self.xp(None), left, right, sums, None, addend[:, None, None])
            found = found[:, 0, 0].astype(np.float32)
            found = self.result(found + c if self.late else found).astype(np.float32)
        found.view(np.uint32)[np.isnan(found)] = unit.product.accumulator.nan
        return found.view(np.uint32)


def likely(unit: Unit, given: Operands, found: np.ndarray) -> str:
    """A sentence on the faults that explain results, in a file's first rows; empty without any."""
    given, found = first_rows(given), found[:MOST_ROWS]
    words = [one.words for one in faults(unit) if (one.results(unit, given) == found).all()]
    return f"the results are those of a unit that {', or '.join(words)}" if words else ""


def unseen(unit: Unit, given: Operands, right: np.ndarray) -> tuple[int, list[str]]:
    """The number of faults that a file could see, and the words of those whose results are right in its first rows."""
    given, found = first_rows(given), faults(unit)
    return len(found), [one.words for one in found if (one.results(unit, given) == right[:MOST_ROWS]).all()]


def first_rows(given: Operands) -> Operands:
    return Operands(given.a[:MOST_ROWS], given.b[:MOST_ROWS], None, np.asarray(given.c)[:MOST_ROWS])


def faults(unit: Unit) -> list[Fault]:
    """The faults that a unit may have.

    None are known of units with scales of blocks, with stochastic rounding, or with a law that has no parameters.
    """
    own = _by_parameters(unit.product.accumulator)
    if own is None or unit.product.block or own.stochastic:
        return []
    one, (of_a, of_b), limited = partial(Fault, accumulator=own), unit.numbers, partial(_finite, _LARGEST)
    found = [Fault(words, accumulator) for words, accumulator in _accumulators(own)]
    found += [
        one("rounds sums twice, first to two more bits", xp=Twice),
        one("counts subnormal sums as zeros", xp=Flushing),
        one("counts subnormal numbers of a as zeros", a=partial(_flushed, of_a)),
        one("counts subnormal numbers of b as zeros", b=partial(_flushed, of_b)),
        one("counts subnormal results as zeros", result=partial(_flushed, FLOAT32_NUMBER)),
        one("cuts the last bit of a", a=partial(_shorter, of_a)),
        one("cuts the last bit of b", b=partial(_shorter, of_b)),
        one("drops the first term", a=partial(_without, 0)),
        one("drops the last term", a=partial(_without, -1)),
        one("takes the first factor of a for all terms", a=lambda x: np.repeat(x[:, :1], x.shape[1], 1)),
        one("takes the sign of products from a alone", b=abs),
        one("takes infinities for zeros", a=partial(_finite, 0.0), b=partial(_finite, 0.0), c=partial(_finite, 0.0)),
        one("takes infinities for large numbers", a=limited, b=limited, c=limited),
        one("takes NaN for zero", a=_number, b=_number, c=_number),
        one("returns the largest number for infinity", result=limited),
        one("returns infinity for NaN", result=lambda x: np.where(np.isnan(x), np.float32(np.inf), x)),
        one("returns -0 for +0", result=lambda x: np.where(x == 0, np.float32(-0.0), x)),
        one("returns the magnitude", result=abs),
    ]
    if unit.addend:
        found += [
            one("does not add the addend", c=np.zeros_like),
            one("adds the addend after the sum, in float32", late=True),
            one("does not see the sign of the addend", c=abs),
            one("counts subnormal addends as zeros", c=partial(_flushed, FLOAT32_NUMBER)),
            one("cuts the addend to bfloat16", c=lambda x: quantize(x, "bfloat16", "toward_zero")),
            one("rounds the addend to bfloat16", c=lambda x: quantize(x, "bfloat16")),
        ]
    return found


def _by_parameters(accumulator: Accumulator) -> Accumulator | None:
    """The accumulator without a name; None if its law has parts that are no parameters."""
    try:
        return accumulator.own
    except ValueError:
        return None


def _accumulators(own: Accumulator) -> Iterator[tuple[str, Accumulator]]:
    """Accumulators with one other parameter, as far as there are such."""
    for words, changes in _changes(own):
        given = {one.name: getattr(own, one.name) for one in fields(own) if one.init} | changes
        try:
            found = Accumulator(**given)
        except (ValueError, TypeError):
            continue
        if found != own:
            yield words, found


def _changes(own: Accumulator) -> Iterator[tuple[str, dict[str, Any]]]:
    bits, zeros, number = own.fraction_bits, own.zeros, own.number
    if bits is not None:
        for more in (-2, -1, 1, 2):
            yield f"keeps {bits + more} bits of fraction", {"fraction_bits": bits + more}
        yield "cuts terms off downward", {"cut": Rounding.DOWN}
        yield "cuts terms off toward zero", {"cut": Rounding.TOWARD_ZERO}
        yield "normalizes subnormal numbers", {"subnormals": NORMALIZED}
        yield "aligns subnormal numbers by their format's least exponent", {"subnormals": "least"}
        yield "aligns by the products alone", {"align": PRODUCTS}
        yield "counts the addend in the alignment", {"align": ALL}
        yield "does not count zeros", {"zeros": None}
        yield "counts zeros with the exponent -126", {"zeros": -126}
        if zeros is not None:
            yield "counts zeros one exponent too high", {"zeros": zeros + 1}
            yield "counts zeros one exponent too low", {"zeros": zeros - 1}
    for mode in _MODES:
        yield f"rounds sums {mode}", {"rounding": Rounding(mode)}
    if isinstance(number, BinaryFloat):
        for bits in {max(number.man - 1, 1), min(number.man + 1, 52)} - {number.man}:
            yield f"has {bits} bits of mantissa", {"number": replace(number, man=bits)}
    yield "returns the largest number for sums beyond it", {"overflow": None}
    yield "keeps the sign of sums that become zero", {"positive_zero": False}
    if own.chunk is not None and not own.order:
        for chunk in (own.chunk // 2, own.chunk - 1, 2 * own.chunk):
            yield f"adds {chunk} terms at once", {"chunk": max(chunk, 1)}


def _flushed(number: Any, x: np.ndarray) -> np.ndarray:
    return np.where(subnormal(x, number), np.float32(0), x)


def _without(place: int, x: np.ndarray) -> np.ndarray:
    found = x.copy()
    found[:, place] = 0
    return found


def _shorter(number: Any, x: np.ndarray) -> np.ndarray:
    """Numbers with one bit of mantissa less."""
    return quantize(x, FloatingPoint(8, max(getattr(number, "man", 23) - 1, 0)), "toward_zero")


def _number(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.float32(0), x)


def _finite(instead: float, x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), np.copysign(np.float32(instead), x), x)
