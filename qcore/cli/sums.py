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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from qcore.arguments import check_flag, check_seed
from qcore.arrays import decode, encode, quantize
from qcore.cli.comparison import check_fields
from qcore.cli.properties import digits, guard_bits, has_last_place, properties, subnormal, why_no_codes
from qcore.formats.block import BlockNumber
from qcore.formats.number import Number
from qcore.law.rounding import Rounding
from qcore.linalg import law
from qcore.linalg.accumulator import FLOAT32_NUMBER
from qcore.linalg.designs import ALIGNED, FLOOR, GROUPED, PARITY
from qcore.linalg.geometry import FORWARD, MatrixGeometry
from qcore.linalg.namespace import Float64
from qcore.linalg.product import Product

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


class StepRecorder(Float64):
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
        a, b: codes, arrays of shape (rows, terms); of a layer its input and weight.
        scales: the codes of a's and b's scales, (rows, blocks); None without scaled operands.
        c: float32 array of shape (rows,), the addends; of a layer its bias, None without one.
    """

    a: np.ndarray
    b: np.ndarray
    scales: tuple[np.ndarray, np.ndarray] | None
    c: Any


@dataclass(frozen=True)
class Results:
    """What the law has for sums.

    Attributes:
        steps: their steps.
        result: float32.
        special: True where an input is infinite or NaN.
        subnormal: True where an input is subnormal in its format.
    """

    steps: list[Step]
    result: np.ndarray
    special: np.ndarray
    subnormal: np.ndarray


@dataclass(frozen=True)
class Unit:
    """A unit that adds products.

    Attributes:
        accumulator: its text.
        first, second: the texts of the operands' formats; None is that of the instruction, or float32.
        terms: the number of products in a sum.
        key: for stochastic accumulators, else None.
        addend: False for a unit without a port for an addend, whose sums start at +0.
    """

    accumulator: str
    first: str | None
    second: str | None
    terms: int
    key: int | None
    addend: bool = True

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

    @classmethod
    def of(cls, header: dict[str, Any]) -> Unit:
        """The unit of a header's fields."""
        text, optional = (str,), (str, type(None))
        kinds = {"accumulator": text, "first": optional, "second": optional, "terms": (int,), "key": (int, type(None))}
        addend = header.get("addend", True)
        check_flag("addend", addend)
        return cls(**check_fields(header, kinds), addend=addend)

    @cached_property
    def product(self) -> Product:
        """The product that the unit computes."""
        return Product(self.first, self.second, self.accumulator)

    @property
    def numbers(self) -> list[Any]:
        """The formats of the operands' elements."""
        given: list[Any] = [operand.number for operand in self.product.operands]
        if self.product.block:
            return [number.element for number in given]
        return [FLOAT32_NUMBER if number is None else number for number in given]

    @property
    def scale(self) -> Any:
        """The format of the blocks' scales."""
        return getattr(self.product.first.number, "scale_format", None) if self.product.block else None

    def scale_numbers(self, codes: np.ndarray) -> np.ndarray:
        """The numbers of scales' codes: instructions do not read the sign bit that E4M3 scales have (mmasim 2.1.1)."""
        return np.abs(decode(codes, self.scale))

    @property
    def largest(self) -> float:
        """The accumulator's largest number."""
        return float(properties(self.product.accumulator.number).largest)

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
            found |= {f"{name}{k}": digits(number.bits) for k in range(self.terms)}
        if self.product.block:
            for name in "ab":
                found |= {f"scale_{name}{k}": digits(self.scale.bits) for k in range(self.terms // self.product.block)}
        return found | ({"c": 8} if self.addend else {})

    @property
    def outputs(self) -> dict[str, int]:
        """The hexadecimal digits of the columns that the law has."""
        accumulator, found = self.product.accumulator, dict[str, int]()
        each = {"exponent": 4, "cut": 1} if self.fraction_bits else {}
        each |= {"word": digits(accumulator.random_bits)} if accumulator.rounding.stochastic else {}
        each |= {"sum": 16}
        each |= (
            {"guard": 1, "round": 1, "sticky": 1} if has_last_place(accumulator.number) and accumulator._rounds else {}
        )
        each |= {"total": 16 if why_no_codes(accumulator.number) else digits(accumulator.number.bits)}
        for step in range(self.steps):
            found |= {f"{name}{step}": size for name, size in each.items()}
        return found | {"result": 8}

    def started(self, addends: Any) -> np.ndarray:
        """The accumulators before the first step: an instruction with float16 results rounds its addends."""
        design, addends = self.product.accumulator.design, np.asarray(addends, np.float32)
        return quantize(addends, "float16") if design is not None and design.number == "float16" else addends

    def run(self, given: Operands) -> Results:
        """The sum of each row."""
        left, right = (decode(x, number) for x, number in zip((given.a, given.b), self.numbers, strict=True))
        left, right, scales = left[:, None, :], right[:, :, None], None
        if given.scales is not None:
            of_left, of_right = map(self.scale_numbers, given.scales)
            scales = of_left[:, None, :], of_right[:, :, None]
        sums = self.product.sums(MatrixGeometry(), FORWARD, left.shape, right.shape, right.shape, True)
        return self.add(left, right, scales, given.c[:, None, None], sums, self.numbers)

    def add(self, left: Any, right: Any, scales: Any, addend: np.ndarray, sums: law.Sums, numbers: Any) -> Results:
        """The sums of a product of matrices, by `multiply`; `numbers` are the formats of the two matrices."""
        accumulator = self.product.accumulator
        xp = StepRecorder(None if self.key is None else check_seed(self.key))

        def run() -> Any:
            return law.multiply(xp, left, right, sums, scales, addend)

        with np.errstate(all="ignore"):
            # A sum that is rounded once, by a conversion, has no fold: it is one step.
            found = xp.noted(run) if accumulator._converts else run()
            result = found.astype(np.float32)
        result.view(np.uint32)[np.isnan(result)] = accumulator.nan
        for step in xp.steps:
            step.sum = step.total if step.sum is None or not accumulator._rounds else step.sum
        sides = [(left, numbers[0], -1), (right, numbers[1], -2)]
        special, tiny = ~np.isfinite(addend), subnormal(addend, FLOAT32_NUMBER)
        for x, number, axis in sides:
            special = special | ~np.isfinite(x).all(axis, keepdims=True)
            tiny = tiny | subnormal(x, number).any(axis, keepdims=True)
        for x, axis in zip(scales or (), (-1, -2), strict=False):
            special = special | ~np.isfinite(x).all(axis, keepdims=True)
        return Results(xp.steps, result, special, tiny)

    def columns(self, given: Operands) -> tuple[dict[str, np.ndarray], Results]:
        """The columns of `outputs` as integers, and what they are made of."""
        found = self.run(given)
        return self.columns_of(found), found

    def columns_of(self, found: Results) -> dict[str, np.ndarray]:
        """The columns of sums."""
        number, columns = self.product.accumulator.number, dict[str, np.ndarray]()
        for index, step in enumerate(found.steps):
            if self.fraction_bits:
                columns[f"exponent{index}"] = step.exponent.astype(np.int64) & 0xFFFF
                columns[f"cut{index}"] = np.broadcast_to(step.cut, step.total.shape)
            if step.word is not None:
                columns[f"word{index}"] = step.word >> (31 - self.product.accumulator.random_bits)
            columns[f"sum{index}"] = step.sum.view(np.uint64)
            if has_last_place(number):
                columns |= {f"{name}{index}": x for name, x in guard_bits(step.sum, number).items()}
            columns[f"total{index}"] = self._codes_of(step.total)
        columns["result"] = found.result.view(np.uint32)
        return {name: columns[name].reshape(-1).astype(np.uint64) for name in self.outputs}

    def _codes_of(self, total: np.ndarray) -> np.ndarray:
        """The codes of accumulators, or float64 bits; a NaN of an instruction has the leading bits of its result's."""
        accumulator = self.product.accumulator
        number: Any = accumulator.number
        if why_no_codes(number):
            return total.view(np.uint64)
        codes = encode(total, number, "nearest")
        if accumulator.design is not None:
            infinity = int(encode(np.full(1, np.inf), number, "nearest")[0])
            codes[np.isnan(total)] = infinity | (accumulator.nan & 0x7FFFFF) >> (23 - number.man)
        return codes


def marks(unit: Unit, step: Step) -> dict[str, np.ndarray]:
    """What a step meets: by its name, True for each row that meets it."""
    number, found = unit.product.accumulator.number, dict[str, np.ndarray]()
    inside = np.isfinite(step.sum) & np.isfinite(step.total) & (step.sum != 0) & (step.total != 0)
    top = np.frexp(step.sum)[1] - 1
    if has_last_place(number) and unit.product.accumulator._rounds:
        bits = guard_bits(step.sum, number)
        rest = bits["round"] | bits["sticky"]
        found["ties"] = (bits["guard"] & ~rest & 1) > 0
        found["inexact sums"] = (bits["guard"] | rest) > 0
    found["carries of a rounding"] = inside & (np.frexp(step.total)[1] - 1 > top)
    beyond = (np.abs(step.sum) > unit.largest) | ~np.isfinite(step.total)
    found["sums beyond the largest number"] = np.isfinite(step.sum) & beyond
    found["subnormal sums"] = subnormal(step.total, number)
    found["sums of zero"] = step.total == 0
    if unit.fraction_bits:
        found["sums above the alignment exponent"] = inside & (top > step.exponent)
        found["sums below it"] = inside & (top < step.exponent)
        found["alignments that cut off bits"] = np.broadcast_to(step.cut, step.total.shape)
    return found


def met(unit: Unit, found: Results) -> dict[str, np.ndarray]:
    """What the inputs and the steps of each row meet, see `marks`; a row may meet several things, or none."""
    shape = found.result.shape
    rows = {"infinite or NaN inputs": found.special, "subnormal inputs": found.subnormal}
    for step in found.steps:
        for name, where in marks(unit, step).items():
            rows[name] = rows.get(name, False) | where
    return {name: np.broadcast_to(where, shape).reshape(-1) for name, where in rows.items()}


def coverage(unit: Unit, found: Results) -> Iterator[str]:
    """Lines about what the steps of all rows meet: ties, carries, bits that are cut off, alignment shifts."""
    count: Counter[str] = Counter()
    for step in found.steps:
        count.update({name: int(where.sum()) for name, where in marks(unit, step).items()})
    steps = sum(step.total.size for step in found.steps)
    yield f"{steps} steps: " + ", ".join(f"{number} {name}" for name, number in count.items())
    if unit.fraction_bits:
        shifts = np.concatenate([(step.exponent - x).ravel() for step in found.steps for x in step.exponents])
        kept = unit.fraction_bits + 1
        seen = np.unique(shifts[shifts < kept]).size
        beyond = int((shifts >= kept).sum())
        yield f"alignment shifts: {seen} of the {kept} from 0 to {kept - 1}, and {beyond} terms beyond"
