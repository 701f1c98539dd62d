"""Vectors for units that add products: operands, the bits of each step and the result, in the columns of a file.

A row is one sum of N products that starts at an addend. Its columns, all in hexadecimal:

| column | holds |
| --- | --- |
| kind | the kind of its inputs, an index into the header's `kinds` |
| a0, b0, ... | the codes of the operands |
| scale_a0, scale_b0, ... | the codes of the blocks' scales, for instructions with scaled operands |
| c | the addend, float32 |
| exponent0, ... | the alignment exponent of a step, two's complement of 16 bits |
| cut0, ... | 1 if the alignment of a step cut off a bit that is 1 |
| word0, ... | the random integer of a step's stochastic rounding, of as many bits as are random |
| sum0, ... | the sum of a step that is rounded: the accumulator and the products, float64 |
| guard0, round0, sticky0, ... | of this sum: the first and the second bit below the last place, the OR of the rest |
| total0, ... | the accumulator after the step: its code, or float64 |
| result | float32 |

The law runs with an array namespace that notes these numbers, so there is no other copy of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from qcore.arguments import check_seed, quoted
from qcore.arrays import decode, encode
from qcore.cli.properties import properties, why_no_codes
from qcore.formats.block import BlockNumber
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number
from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import FLOAT32_NUMBER
from qcore.linalg.designs import ALIGNED, FLOOR, GROUPED, PARITY
from qcore.linalg.forms import FORWARD, MatrixForm
from qcore.linalg.law import multiply
from qcore.linalg.namespace import Float64
from qcore.linalg.product import Product

KINDS = "random", "near", "cancellation", "subnormal", "large", "special", "tie", "zero"
_ALIGN = ALIGNED, GROUPED, FLOOR, PARITY


@dataclass
class Step:
    """What one step of a sum did in each row.

    Attributes:
        total: the accumulator afterwards, float64.
        sum: what was rounded to it, float64.
        word: the random words of the rounding; None without.
        exponents: of the accumulator and the terms, for aligned sums; the largest is the alignment exponent.
        cut: True where the alignment cut off a bit that is 1.
    """

    total: Any = None
    sum: Any = None
    word: Any = None
    exponents: list[Any] = field(default_factory=list)
    cut: Any = False

    @property
    def exponent(self) -> Any:
        """The alignment exponent."""
        return np.max(np.broadcast_arrays(*self.exponents), 0)


class Recording(Float64):
    """The array namespace of products, with a note of each step of the outermost accumulator."""

    def __init__(self, key: tuple[int, int] | None) -> None:
        super().__init__(key)
        self.steps: list[Step] = []
        self._inside = False

    def fold(
        self, step: Callable[..., Any], total: Any, a: Any, b: Any, length: int, shares_words: bool = False
    ) -> Any:
        if self._inside:
            return super().fold(step, total, a, b, length, shares_words)

        def noted(total: Any, index: int, a: Any, b: Any) -> Any:
            return self.noted(lambda: step(total, index, a, b))

        return super().fold(noted, total, a, b, length, shares_words)

    def noted(self, step: Callable[[], Any]) -> Any:
        """Runs a step and notes it."""
        self.steps.append(Step())
        self._inside = True
        total = step()
        self._inside = False
        self.steps[-1].total = total.copy()
        return total

    def rounded(  # type: ignore[override]
        self, x: np.ndarray, number: Number, mode: Rounding, step: int, random_bits: int
    ) -> np.ndarray:
        if self._inside:
            self.steps[-1].sum = x.copy()
        return super().rounded(x, number, mode, step, random_bits)

    def words(self, shape: tuple[int, ...], step: int, random_bits: int, half: bool) -> np.ndarray:
        found = super().words(shape, step, random_bits, half)
        if self._inside:
            self.steps[-1].word = found
        return found

    def maximum(self, first: Any, second: Any) -> Any:  # type: ignore[override]
        noted = self.steps[-1].exponents
        noted += [second] if noted else [first, second]
        return np.maximum(first, second)

    def trunc(self, x: Any) -> Any:  # type: ignore[override]
        return self._cut(x, np.trunc(x))

    def floor(self, x: Any) -> Any:  # type: ignore[override]
        return self._cut(x, np.floor(x))

    def _cut(self, x: Any, found: Any) -> Any:
        step = self.steps[-1]
        step.cut = step.cut | ((x != found) & ~np.isnan(x))
        return found


@dataclass(frozen=True)
class Operands:
    """The inputs of the rows.

    Attributes:
        a, b: codes, arrays of shape (rows, terms).
        scales: the codes of a's and b's scales, (rows, blocks); None without scaled operands.
        c: float32 array of shape (rows,), the addends.
    """

    a: np.ndarray
    b: np.ndarray
    scales: tuple[np.ndarray, np.ndarray] | None
    c: np.ndarray


@dataclass(frozen=True)
class Unit:
    """A unit that adds products.

    Attributes:
        accumulator: its text.
        first, second: the texts of the operands' formats; None is that of the instruction, or float32.
        terms: the number of products in a sum.
        key: for stochastic accumulators, else None.
    """

    accumulator: str
    first: str | None
    second: str | None
    terms: int
    key: int | None

    def __post_init__(self) -> None:
        if self.terms < 1:
            raise ValueError(f"terms={self.terms}; allowed is an int >= 1")
        if (self.key is None) == self.product.accumulator.stochastic:
            allowed = "an int" if self.key is None else "no key: nothing is stochastic"
            raise ValueError(f"key={self.key} with {self.accumulator}; allowed is {allowed}")
        for number in self.numbers:
            if isinstance(number, BlockNumber) or why_no_codes(number):
                raise ValueError(
                    f"an operand is {number.text}; allowed are formats with codes, and without shared scales"
                )
        block = self.product.block
        if block and self.terms % block:
            raise ValueError(f"terms={self.terms}; allowed are multiples of {block}, which share a scale")

    @cached_property
    def product(self) -> Product:
        """The product that the unit computes."""
        return Product(self.first, self.second, self.accumulator)

    @property
    def numbers(self) -> list[Any]:
        """The formats of the operands' elements."""
        given = [operand.number for operand in self.product.operands]
        if self.product.block:
            return [number.element for number in given]
        return [FLOAT32_NUMBER if number is None else number for number in given]

    @property
    def scale(self) -> Any:
        """The format of the blocks' scales."""
        return getattr(self.product.first.number, "scale_format", None) if self.product.block else None

    @property
    def fraction_bits(self) -> int | None:
        """The bits of fraction that aligned terms keep; None if the outermost accumulator does not align."""
        accumulator = self.product.accumulator
        aligns = accumulator.design is None or accumulator.design.law in _ALIGN
        return accumulator.fraction_bits if aligns else None

    @property
    def steps(self) -> int:
        """The number of steps of a sum."""
        return -(-self.terms // self.product.accumulator.length(self.terms))

    @property
    def inputs(self) -> dict[str, int]:
        """The hexadecimal digits of the columns of inputs."""
        found = {"kind": 1}
        for name, number in zip("ab", self.numbers, strict=True):
            found |= {f"{name}{k}": _digits(number.bits) for k in range(self.terms)}
        if self.product.block:
            for name in "ab":
                found |= {f"scale_{name}{k}": _digits(self.scale.bits) for k in range(self.terms // self.product.block)}
        return found | {"c": 8}

    @property
    def outputs(self) -> dict[str, int]:
        """The hexadecimal digits of the columns that the law has."""
        accumulator, found = self.product.accumulator, dict[str, int]()
        each = {"exponent": 4, "cut": 1} if self.fraction_bits else {}
        each |= {"word": _digits(accumulator.random_bits)} if accumulator.rounding.stochastic else {}
        each |= {"sum": 16}
        each |= {"guard": 1, "round": 1, "sticky": 1} if _has_places(accumulator.number) and accumulator.rounds else {}
        each |= {"total": 16 if why_no_codes(accumulator.number) else _digits(accumulator.number.bits)}
        for step in range(self.steps):
            found |= {f"{name}{step}": digits for name, digits in each.items()}
        return found | {"result": 8}

    def run(self, given: Operands) -> tuple[list[Step], np.ndarray]:
        """The steps of each row's sum, and the results in float32."""
        product, accumulator = self.product, self.product.accumulator
        left, right = (decode(x, number) for x, number in zip((given.a, given.b), self.numbers, strict=True))
        left, right = left[:, None, :], right[:, :, None]
        scales = None
        if given.scales is not None:
            of_left, of_right = (decode(x, self.scale) for x in given.scales)
            scales = of_left[:, None, :], of_right[:, :, None]
        sums = product.sums(MatrixForm(), FORWARD, left.shape, right.shape, right.shape, True)
        xp = Recording(None if self.key is None else check_seed(self.key))
        addend = given.c[:, None, None]

        def run() -> Any:
            return multiply(xp, left, right, sums, scales, addend)

        with np.errstate(all="ignore"):
            # A sum that is rounded once, by a conversion, has no fold: it is one step.
            found = xp.noted(run) if accumulator.converts else run()
            result = found.astype(np.float32)[:, 0, 0]
        result.view(np.uint32)[np.isnan(result)] = accumulator.nan
        for step in xp.steps:
            step.sum = step.total if step.sum is None or not accumulator.rounds else step.sum
        return xp.steps, result

    def columns(self, given: Operands) -> tuple[dict[str, np.ndarray], list[Step]]:
        """The columns of `outputs` as integers, and the steps."""
        steps, result = self.run(given)
        number, found = self.product.accumulator.number, dict[str, np.ndarray]()
        for index, step in enumerate(steps):
            if self.fraction_bits:
                found[f"exponent{index}"] = step.exponent.astype(np.int64) & 0xFFFF
                found[f"cut{index}"] = np.broadcast_to(step.cut, step.total.shape)
            if step.word is not None:
                found[f"word{index}"] = step.word >> (31 - self.product.accumulator.random_bits)
            found[f"sum{index}"] = step.sum.view(np.uint64)
            if _has_places(number):
                bits = places(step.sum, number)
                found |= {f"{name}{index}": x for name, x in zip(("guard", "round", "sticky"), bits, strict=True)}
            total = step.total.view(np.uint64) if why_no_codes(number) else encode(step.total, number, "nearest")
            found[f"total{index}"] = total
        found["result"] = result.view(np.uint32)
        return {name: found[name].reshape(-1).astype(np.uint64) for name in self.outputs}, steps


def _digits(bits: int) -> int:
    return -(-bits // 4)


def _has_places(number: Any) -> bool:
    """True if a number's last place follows from its exponent."""
    return isinstance(number, FixedPoint | FloatingPoint | BinaryFloat)


def places(x: np.ndarray, number: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The guard, the round and the sticky bit of float64 numbers below the last place of a format."""
    bits, least, _ = number.span
    finite = np.where(np.isfinite(x), np.abs(x), 0.0)
    last = np.frexp(finite)[1] - bits
    last = np.full_like(last, least) if isinstance(number, FixedPoint) else np.maximum(last, least)
    rest = np.modf(np.ldexp(finite, -last))[0] * 4
    two = rest.astype(np.int64)
    return two >> 1, two & 1, (rest != two).astype(np.int64)


def draw(unit: Unit, count: int, seed: int) -> tuple[np.ndarray, Operands]:
    """The kinds of the rows, and their inputs: `count` rows, the kinds in turn."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(count) % len(KINDS)
    shape = count, unit.terms
    scales = None
    if unit.product.block:
        scales = _scales(unit, kinds, rng), _scales(unit, kinds, rng)
    with np.errstate(all="ignore"):
        a, b = (_codes(number, kinds, shape, rng) for number in unit.numbers)
        left, right = (decode(x, number).astype(np.float64) for x, number in zip((a, b), unit.numbers, strict=True))
        c = (left[:, 0] * right[:, 0]).astype(np.float32)
        exponents = rng.integers(-20, 21, count)
        c = np.where(rng.integers(0, 2, count) > 0, np.ldexp(c, exponents), 0).astype(np.float32)
        half = unit.terms // 2
        rows = kinds == KINDS.index("cancellation")
        a[rows, half : 2 * half] = a[rows, :half]
        negative = encode(-decode(b, unit.numbers[1]), unit.numbers[1], "nearest")
        b[rows, half : 2 * half] = negative[rows, :half]
        c[kinds == KINDS.index("large")] *= np.float32(2.0**100)
        c[kinds == KINDS.index("subnormal")] = rng.integers(1, 1 << 23, (kinds == 3).sum(), np.uint32).view(np.float32)
        rows = kinds == KINDS.index("special")
        c[rows] = rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45, 1.0], np.float32), rows.sum())
        rows = kinds == KINDS.index("zero")  # products of zeros, whose exponents count, beside a tiny addend
        a[rows] = encode(np.zeros(shape, np.float32), unit.numbers[0], "nearest")[rows]
        c[rows] = np.ldexp(rng.uniform(-2, 2, rows.sum()), rng.integers(-135, -115, rows.sum()))
        rows = kinds == KINDS.index("tie")
        a[rows], b[rows], c[rows] = _ties(unit, int(rows.sum()), rng)
    return kinds, Operands(a, b, scales, c)


def _scales(unit: Unit, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes of scales: near 1, and of random rows any."""
    shape = len(kinds), unit.terms // unit.product.block
    near = encode(np.ldexp(np.float32(1), rng.integers(-4, 5, shape)).astype(np.float32), unit.scale, "nearest")
    anything = rng.integers(0, 1 << unit.scale.bits, shape).astype(near.dtype)
    return np.where((kinds == KINDS.index("random"))[:, None], anything, near)


def _codes(number: Any, kinds: np.ndarray, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Codes of an operand for each row's kind."""
    known = properties(number)
    largest, smallest = float(known.largest), float(known.smallest or known.largest)
    sign = 1.0 - 2.0 * rng.integers(0, 2, shape) if float(known.lowest) < 0 else 1.0
    middle = float(np.clip(1.0, smallest, largest))
    near = np.clip(np.ldexp(middle * rng.uniform(1, 2, shape), rng.integers(-6, 7, shape)), smallest, largest)
    small = np.minimum(smallest * rng.integers(0, 9, shape), largest)
    large = largest * rng.uniform(0.5, 1, shape)
    odd = rng.choice(
        [0.0, -0.0, np.inf, np.nan, smallest, largest, middle], shape, p=[0.2, 0.1, 0.002, 0.002, 0.2, 0.2, 0.296]
    )
    chosen = np.choose(kinds[:, None], [near, near, near, small, large, odd, near, near])
    codes = encode((sign * chosen).astype(np.float32), number, "nearest")
    anything = rng.integers(0, 1 << number.bits, shape).astype(codes.dtype)
    return np.where((kinds == KINDS.index("random"))[:, None], anything, codes)


def _ties(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One product that is a power of two, beside an addend whose last place is twice as much."""
    factors = []
    for number in unit.numbers:
        known = properties(number)
        highest = known.largest.log2
        lowest = min(highest, max(known.smallest.log2 if known.smallest else highest, highest - 8))
        x = np.zeros((count, unit.terms), np.float32)
        x[:, 0] = np.ldexp(1.0, rng.integers(lowest, highest + 1, count))
        factors.append(encode(x, number, "nearest"))
    product = np.prod([decode(x[:, :1], n).astype(np.float64) for x, n in zip(factors, unit.numbers, strict=True)], 0)[
        :, 0
    ]
    number = unit.product.accumulator.number
    bits = min(number.span[0] if _has_places(number) else 24, 24)
    significand = rng.integers(1 << (bits - 1), 1 << bits, count)
    c = (significand * product * 2 * (1 - 2 * rng.integers(0, 2, count))).astype(np.float32)
    return factors[0], factors[1], c


def coverage(unit: Unit, steps: Sequence[Step]) -> Iterator[str]:
    """Lines about what the steps of all rows met: ties, carries, bits that were cut off, alignment shifts."""
    count = sum(step.total.size for step in steps)
    number = unit.product.accumulator.number
    found: Counter[str] = Counter()
    for step in steps:
        inside = np.isfinite(step.sum) & np.isfinite(step.total) & (step.sum != 0) & (step.total != 0)
        top = np.frexp(step.sum)[1] - 1
        if _has_places(number) and unit.product.accumulator.rounds:
            guard, second, sticky = places(step.sum, number)
            found["ties"] += int((guard & ~(second | sticky) & 1).sum())
            found["inexact sums"] += int((guard | second | sticky).sum())
        found["carries of a rounding"] += int((inside & (np.frexp(step.total)[1] - 1 > top)).sum())
        if unit.fraction_bits:
            found["sums above the alignment exponent"] += int((inside & (top > step.exponent)).sum())
            found["sums below it"] += int((inside & (top < step.exponent)).sum())
            found["alignments that cut off bits"] += int(np.sum(step.cut))
    yield f"{count} steps: " + ", ".join(f"{number} {name}" for name, number in found.items())
    if unit.fraction_bits:
        shifts = np.concatenate([(step.exponent - x).ravel() for step in steps for x in step.exponents])
        kept = unit.fraction_bits + 1
        seen = np.unique(shifts[shifts < kept]).size
        beyond = int((shifts >= kept).sum())
        yield f"alignment shifts: {seen} of the {kept} from 0 to {kept - 1}, and {beyond} terms beyond"


def check_unit(found: dict[str, Any]) -> Unit:
    """The unit of a header's fields."""
    names = "accumulator", "first", "second", "terms", "key"
    values = [found.get(name) for name in names]
    kinds = (str,), (str, type(None)), (str, type(None)), (int,), (int, type(None))
    for name, value, allowed in zip(names, values, kinds, strict=True):
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ValueError(f"{name} is {quoted(value)}; allowed is what `vectors` wrote")
    return Unit(*values)  # type: ignore[arg-type]
