"""Units that add products with one fault each: what a file of vectors must see, and what `check` says of a wrong unit.

A fault is a change in one line of a unit: another parameter of the accumulator, another law of a step, another
rounding, or a change of the operands, of their scales, of the addend or of the result. Its words end the sentence "the
results are those of a unit that ..".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
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
from qcore.linalg.accumulator import ALL, LEAST, NORMALIZED, PRODUCTS, Accumulator
from qcore.linalg.designs import ALIGNED, EXACT, FUSED, GROUPED, PAIRS, Design
from qcore.linalg.geometry import FORWARD, MatrixGeometry
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


class Rounds(Float64):
    """Rounds sums by another mode, or to more or fewer bits."""

    def __init__(self, key: None, mode: Rounding | None = None, digits: int = 0) -> None:
        super().__init__(key)
        self._mode, self._digits = mode, digits

    def rounded(self, x: np.ndarray, number: Any, mode: Rounding, *others: Any) -> np.ndarray:  # type: ignore[override]
        number = replace(number, man=number.man + self._digits) if self._digits else number
        return super().rounded(x, number, self._mode or mode, *others)


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
        scale_a, scale_b: what happens to the numbers of scales' codes, shape (rows, blocks).
        repeats: the terms that share a scale, which each of them then has itself; 1 leaves scales to blocks.
        result: what happens to the results.
        late: True if addends are added to the results, in float32.
        xp: makes the array namespace in which it adds.
    """

    words: str
    accumulator: Accumulator
    a: Change = lambda x: x
    b: Change = lambda x: x
    c: Change = lambda x: x
    scale_a: Change = np.abs
    scale_b: Change = np.abs
    repeats: int = 1
    result: Change = lambda x: x
    late: bool = False
    xp: Callable[[None], Float64] = Float64

    def results(self, unit: Unit, given: Operands) -> np.ndarray:
        """The bits of the results in place of a unit's."""
        a, b = (decode(x, number) for x, number in zip((given.a, given.b), unit.numbers, strict=True))
        with np.errstate(all="ignore"):
            a, b, c = self.a(a), self.b(b), self.c(unit.started(given.c))
            left, right, scales = a[:, None, :], b[:, :, None], None
            if given.scales is not None:
                changes = (self.scale_a, self.scale_b)
                of_a, of_b = (change(decode(x, unit.scale)) for change, x in zip(changes, given.scales, strict=True))
                scales = of_a.repeat(self.repeats, 1)[:, None, :], of_b.repeat(self.repeats, 1)[:, :, None]
            sums = unit.product.sums(MatrixGeometry(), FORWARD, left.shape, right.shape, right.shape, True)
            sums = law.Sums(self.accumulator, False, least=sums.least)
            addend = np.zeros_like(c) if self.late else c
            found = law.multiply(self.xp(None), left, right, sums, scales, addend[:, None, None])
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
    scales = None if given.scales is None else (given.scales[0][:MOST_ROWS], given.scales[1][:MOST_ROWS])
    return Operands(given.a[:MOST_ROWS], given.b[:MOST_ROWS], scales, np.asarray(given.c)[:MOST_ROWS])


def faults(unit: Unit) -> list[Fault]:
    """The faults that a unit may have; none are known of units with stochastic rounding."""
    own = _by_parameters(unit.product.accumulator)
    if own.stochastic:
        return []
    of_law = _of_instruction(own) if own.design is not None else (Fault(*one) for one in _accumulators(own))
    found = [*of_law, *_of_operands(unit, own)]
    if unit.product.block:
        found += _of_scales(unit, own)
    return found + [*_of_addends(own)] if unit.addend else found


def _of_operands(unit: Unit, own: Accumulator) -> Iterator[Fault]:
    """Changes of operands and results, and of each rounding."""
    one, (of_a, of_b), limited = partial(Fault, accumulator=own), unit.numbers, partial(_finite, _LARGEST)
    yield one("rounds sums twice, first to two more bits", xp=Twice)
    if not _flushes(own):
        yield one("counts subnormal sums as zeros", xp=Flushing)
        yield one("counts subnormal numbers of a as zeros", a=partial(_flushed, of_a))
        yield one("counts subnormal numbers of b as zeros", b=partial(_flushed, of_b))
        yield one("counts subnormal results as zeros", result=partial(_flushed, FLOAT32_NUMBER))
    yield one("cuts the last bit of a", a=partial(_shorter, of_a))
    yield one("cuts the last bit of b", b=partial(_shorter, of_b))
    yield one("drops the first term", a=partial(_without, 0))
    yield one("drops the last term", a=partial(_without, -1))
    yield one("takes the first factor of a for all terms", a=lambda x: np.repeat(x[:, :1], x.shape[1], 1))
    yield one("takes the sign of products from a alone", b=abs)
    yield one("takes infinities for zeros", a=partial(_finite, 0.0), b=partial(_finite, 0.0), c=partial(_finite, 0.0))
    yield one("takes infinities for large numbers", a=limited, b=limited, c=limited)
    yield one("takes NaN for zero", a=_number, b=_number, c=_number)
    yield one("returns the largest number for infinity", result=limited)
    yield one("returns infinity for NaN", result=lambda x: np.where(np.isnan(x), np.float32(np.inf), x))
    yield one("returns -0 for +0", result=lambda x: np.where(x == 0, np.float32(-0.0), x))
    yield one("returns the magnitude", result=abs)


def _flushes(own: Accumulator) -> bool:
    return own.design is not None and own.design.flushes


def _of_addends(own: Accumulator) -> Iterator[Fault]:
    one = partial(Fault, accumulator=own)
    yield one("does not add the addend", c=np.zeros_like)
    yield one("adds the addend after the sum, in float32", late=True)
    yield one("does not see the sign of the addend", c=abs)
    if not _flushes(own):
        yield one("counts subnormal addends as zeros", c=partial(_flushed, FLOAT32_NUMBER))
    yield one("cuts the addend to bfloat16", c=lambda x: quantize(x, "bfloat16", "toward_zero"))
    yield one("rounds the addend to bfloat16", c=lambda x: quantize(x, "bfloat16"))


def _of_scales(unit: Unit, own: Accumulator) -> Iterator[Fault]:
    """Changes of the scales of blocks."""
    one, least = partial(Fault, accumulator=own), partial(_flushed, unit.scale)
    yield one("does not scale a", scale_a=np.ones_like)
    yield one("does not scale b", scale_b=np.ones_like)
    yield one("counts the exponents of scales of a one too high", scale_a=lambda x: 2 * abs(x))
    yield one("counts the exponents of scales of b one too low", scale_b=lambda x: abs(x) / 2)
    yield one("takes the first scale of a for all blocks", scale_a=lambda x: abs(np.repeat(x[:, :1], x.shape[1], 1)))
    yield one("takes the last scale of b for all blocks", scale_b=lambda x: abs(np.repeat(x[:, -1:], x.shape[1], 1)))
    yield one("takes the scale of the next block", scale_a=lambda x: abs(np.roll(x, -1, 1)))
    yield one("takes NaN scales for zeros", scale_a=lambda x: _number(abs(x)), scale_b=lambda x: _number(abs(x)))
    if own.design is not None and own.design.scale == "e8m0":
        yield one("counts the least scale as zero", scale_a=_without_least, scale_b=_without_least)
        return
    yield one("reads the sign of scales", scale_a=lambda x: x, scale_b=lambda x: x)
    yield one("counts subnormal scales as zeros", scale_a=lambda x: least(abs(x)), scale_b=lambda x: least(abs(x)))
    yield one("cuts scales to powers of two", scale_a=_to_power, scale_b=_to_power)
    yield one("cuts the last bit of scales", scale_a=lambda x: _shorter(unit.scale, abs(x)))


def _of_instruction(own: Accumulator) -> Iterator[Fault]:
    """Other laws of instructions whose parts are no parameters of an accumulator, or not all."""
    design: Any = own.design
    if own.fraction_bits is None:
        yield from _of_rounded_sums(own, design)
        return
    grouped = design.law == GROUPED
    for words, changes in _changes(_with(own, chunk=None)):
        found = _with(own, **changes)
        # In groups only scales have exponents, and accumulators keep all bits of subnormal numbers in any case.
        same = all(getattr(found, name) == getattr(own, name) for name in changes)
        if not same and not (grouped and "subnormals" in changes):
            yield Fault(words, found)
    for step in (design.step // 2, 2 * design.step):
        repeats = 1 if grouped else design.block  # a step of another length has no whole blocks
        other = Accumulator(design=replace(design, step=step, block=design.block // repeats))
        yield Fault(f"adds {step} terms at once", other, repeats=repeats)
    if grouped:
        alone = Accumulator(design=replace(design, law=ALIGNED, block=1))
        yield Fault("aligns products, not the sums of 16", alone, repeats=design.block)
    if grouped and design.scale != "e8m0":
        yield Fault("normalizes subnormal scales", Accumulator(design=replace(design, scale="float16")))


def _of_rounded_sums(own: Accumulator, design: Design) -> Iterator[Fault]:
    """Other laws of steps that round one sum after the other."""

    def other(words: str, **changes: Any) -> Fault:
        return Fault(words, Accumulator(design=replace(design, **changes)))

    plain = Accumulator(chunk=design.step)
    for mode in _MODES:
        if mode != "nearest":
            yield Fault(f"rounds sums {mode}", own, xp=partial(Rounds, mode=Rounding(mode)))
    for digits in (-1, 1):
        yield Fault(f"has {FLOAT32_NUMBER.man + digits} bits of mantissa", own, xp=partial(Rounds, digits=digits))
    if design.law == FUSED:
        yield other("rounds products before it adds them", law=PAIRS)
    else:
        yield other("adds terms one by one, fused", law=FUSED, step=1)
        yield other("rounds products, and adds them one by one", law=PAIRS, step=1)
        yield other(f"adds {design.step // 2} terms at once", step=design.step // 2)
    yield other(f"adds {2 * design.step} terms at once", step=2 * design.step)
    if design.law == EXACT:
        yield other("adds terms in pairs", law=PAIRS)
        yield Fault(
            "rounds the sum of the products before it adds the addend", Accumulator(chunk=design.step, inner=plain)
        )
    else:
        yield other("adds the terms of two steps exactly", law=EXACT, step=2 * design.step)
    yield Fault("adds in float64 before it rounds", plain)
    for bits in (24, 30):
        aligned = Accumulator(chunk=design.step, fraction_bits=bits, subnormals=LEAST)
        yield Fault(f"aligns terms, with {bits} bits of fraction", aligned)
    if design.order:
        yield other("takes terms in their order", order=())
    elif design.step > 1:
        if design.law == PAIRS and design.step > 2:
            yield other("takes every second term first", order=_halves(design.step))
        yield other("takes terms of two steps in turn", order=_halves(2 * design.step))
    if design.flushes:
        yield other("does not count subnormal numbers as zeros", flushes=False)
        yield other("gives zeros of subnormal numbers the other sign", signed_flushes=not design.signed_flushes)
    else:
        yield other("counts subnormal numbers and sums as zeros", flushes=True)


def _halves(count: int) -> tuple[int, ...]:
    """Even places, then odd ones."""
    return (*range(0, count, 2), *range(1, count, 2))


def _with(accumulator: Accumulator, **changes: Any) -> Accumulator:
    """An accumulator with other parameters, which need not be those of any accumulator that may be asked for."""
    found = copy(accumulator)
    for name, value in changes.items():
        object.__setattr__(found, name, value)
    return found


def _by_parameters(accumulator: Accumulator) -> Accumulator:
    """The accumulator without a name, unless its law has parts that are no parameters."""
    try:
        return accumulator.own
    except ValueError:
        return accumulator


def _accumulators(own: Accumulator) -> Iterator[tuple[str, Accumulator]]:
    """Accumulators with one other parameter, also inside of chunks, as far as there are such."""
    for words, changes in _changes(own):
        given = {one.name: getattr(own, one.name) for one in fields(own) if one.init} | changes
        try:
            found = Accumulator(**given)
        except (ValueError, TypeError):
            continue
        if found != own:
            yield words, found
    if own.inner is not None:
        for words, inner in _accumulators(_by_parameters(own.inner)):
            with suppress(ValueError):  # a chunk that is longer than that around it
                yield f"{words} inside of a chunk", replace(own, inner=inner)


def _changes(own: Accumulator) -> Iterator[tuple[str, dict[str, Any]]]:
    bits, zeros, number = own.fraction_bits, own.zeros, own.number
    if bits is not None:
        for more in (-2, -1, 1, 2):
            yield f"keeps {bits + more} bits of fraction", {"fraction_bits": bits + more}
        yield "cuts terms off downward", {"cut": Rounding.DOWN}
        yield "cuts terms off toward zero", {"cut": Rounding.TOWARD_ZERO}
        yield "normalizes subnormal numbers", {"subnormals": NORMALIZED}
        yield "aligns subnormal numbers by their format's least exponent", {"subnormals": LEAST}
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
    if own.tree:
        yield "adds the terms of a chunk in float64", {"tree": False}
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


def _without_least(x: np.ndarray) -> np.ndarray:
    """Powers of two without the least one of E8M0."""
    return np.where(x == 2.0**-127, np.float32(0), x)


def _to_power(x: np.ndarray) -> np.ndarray:
    """The powers of two next to magnitudes, toward zero."""
    return quantize(abs(x), FloatingPoint(8, 0), "toward_zero")


def _number(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.float32(0), x)


def _finite(instead: float, x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), np.copysign(np.float32(instead), x), x)
