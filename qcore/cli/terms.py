"""The law of products on values that stand for terms: what a chunk does, from which C with loops is written.

`qcore.linalg.law` runs once with `Terms` as its array namespace:

| in the law | what is recorded |
| --- | --- |
| a fold over chunks | a `Fold`: the accumulator after a chunk; of an accumulator inside, its result is a call |
| a loop over a chunk's terms that adds each to a value of the chunk, or finds a maximum | one running value |
| terms that are added to each other: pairs, trees, exact sums | each term has a value |
| the rounding of a sum | a call of `Rounded` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qcore.cli.c_text import Body, Constants, Reading, identifier
from qcore.formats.number import Number
from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import TWICE, Accumulator, rounding_program
from qcore.linalg.designs import EXACT, GROUPED, PAIRS
from qcore.linalg.steps import NONE
from qcore.trace import BLOCK, ELEMENT, Value

WHOLE = 1 << 40  # terms of an array whose length only the caller of the C knows


class Term(Value):
    """A value of a term, of several terms, or of a chunk.

    Attributes:
        terms: the first term in the chunk, and the one behind the last; None for values of a chunk.
        side: for the numbers themselves, a key of `_SIDES`; else "".
        running: True if it is a sum, or a maximum, over terms.
    """

    terms: tuple[int, int] | None = None
    side = ""
    running = False

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        trace: Any = self.trace
        return 1, trace.columns(self)

    def __getitem__(self, key: Any) -> Any:
        trace: Any = self.trace
        return trace.part_of(self, next(one for one in key if isinstance(one, slice) and one != slice(None)))

    def reshape(self, shape: Any) -> Term:
        return self


@dataclass(frozen=True)
class Fold:
    """A fold over chunks.

    Attributes:
        name: of its function.
        length: the terms of a chunk; 0 for a chunk of all terms.
        result: the accumulator after a chunk.
    """

    name: str
    length: int
    result: Term


class Rounded:
    """The rounding of a double to a format."""

    def __init__(self, name: str, number: Number, mode: Rounding) -> None:
        self.name = name
        program, integers = rounding_program(number, mode)
        self.constants = Constants(program.fields(), integers)
        trace = Reading()
        bits = trace.value("bits", "int64", ELEMENT)
        rounded = program.run(trace, bits, self.constants.given, ())
        trace.named("", rounded=rounded)
        self.body = Body(trace, [rounded])

    def function(self) -> Iterator[str]:
        lines = self.body.commented(self.body.results, ELEMENT, "    ")
        yield from [f"static double {self.name}(double x)", "{"]
        yield from (f"    {line}" for line in self.constants.declared("\n".join(lines), "int64_t"))
        yield from ["    const int64_t bits = bits_of64(x);", *lines]
        yield from [f"    return number_of64({self.body.name(self.body.results[0])});", "}", ""]


class Terms(Reading):
    """The array namespace of products, see `qcore.linalg.namespace`, whose arrays are values that stand for terms.

    Args:
        accumulator: the one that sums.
        block: the terms that share a scale; 0 without scales.

    Attributes:
        order: the places from which terms are taken; () is their own.
        folds: the functions, the inner ones first.
        roundings: by the names of their functions.
    """

    value_type = Term

    def __init__(self, accumulator: Accumulator, block: int) -> None:
        super().__init__()
        self.block, self.folds, self.roundings = block, list[Fold](), dict[str, Rounded]()
        nest = [accumulator]
        while nest[-1].inner is not None:
            nest.append(nest[-1].inner)
        self.order = next((one.order for one in nest if one.order), ())
        # Those that add chunk by chunk: a sum of all terms that is converted, or begins at +0, is no fold.
        skipped = [accumulator._converts, *(one.chunk is None for one in nest[1:])]
        self._nest = [one for one, skips in zip(nest, skipped, strict=True) if not skips]
        self._depth, self._length, self._each = 0, 0, 1

    # Arrays and their parts.

    def array(self, side: str) -> Term:
        """All numbers of a side."""
        found: Any = self.value(f"all {side}", "float32", ELEMENT)
        found.side = side
        return found

    def part(self, x: Term, index: Any, axis: int, count: int = 1) -> Term:
        """The scales of a chunk."""
        return self._numbers(x.side, (0, count))

    def _numbers(self, side: str, terms: tuple[int, int]) -> Term:
        """Numbers of a chunk: a variable of a loop over these terms, or of the chunk if it is one number."""
        (first, end), scales = terms, side.startswith("scale")
        one = end - first == 1
        whole = self._length // self.block if scales else self._length
        text = side if terms == (0, whole) else f"{side}_{first}" if one else f"{side}_{first}_to_{end}"
        found: Any = self.value(text, "float32", BLOCK if one or scales else ELEMENT)
        found.side, found.terms = side, terms
        return found

    def columns(self, x: Term) -> int:
        """The columns that the law sees: one column stands for all terms that it treats alike."""
        if x.terms is None:
            return WHOLE // self.block if x.side.startswith("scale") else WHOLE
        return (x.terms[1] - x.terms[0]) // self._each

    def part_of(self, x: Term, columns: slice) -> Any:
        """Columns of an array; None for no columns."""
        if columns.stop == 0:
            return None
        if columns.step is not None or x.terms is None:
            return x  # each n-th term, which `order` says
        each = self._each if of_term(x) else 1
        begin, end = x.terms
        stop = end if columns.stop is None else min(begin + columns.stop * each, end)
        return self._moved(x, (begin + (columns.start or 0) * each, stop))

    def _moved(self, x: Any, terms: tuple[int, int]) -> Any:
        """The same value of other terms."""
        if not isinstance(x, Term) or x.terms in (None, terms):
            return x
        if x.side:
            return self._numbers(x.side, terms)
        found = self.note(x.text, *(self._moved(part, terms) for part in x.parts), dtype=x.dtype)
        self.named(x.function, **({x.label: found} if x.label else {}))
        return found

    def value(
        self, text: str, dtype: str, level: int, operands: tuple[Value, ...] = (), parts: Any = (), like: str = ""
    ) -> Value:
        found: Any = super().value(text, dtype, level, operands, parts, like)
        read: Any = sorted(operands, key=lambda one: -one.level)
        found.terms = found.terms or next((one.terms for one in read if one.terms is not None), None)
        return found

    # Folds, sums and maxima.

    def fold(
        self, step: Callable[..., Any], total: Any, a: Any, b: Any, length: int, shares_words: bool = False
    ) -> Any:
        accumulator = self._nest[self._depth] if self._depth < len(self._nest) else None
        passed = "a, b" + (", scale_a, scale_b" if self.block else "") + (", count" if self.order else "")
        ends = "begin, stop" if self._depth else "0, size" if self.order else "0, count"
        before = self._depth, self._length, self._each
        self._depth, self._length, self._each = self._depth + 1, length, _alike(accumulator, length)
        parts = (self._numbers(side, (0, length)) if self._each else self.array(side) for side in "xy")
        result = step(self.value("total", "float64", BLOCK), 0, *parts)
        self._depth, self._length, self._each = before
        what = "products" if accumulator is None else "steps" if accumulator.adds_total else "chunks"
        name = f"sum_of_{what}"
        name += str(len(self.folds) + 1) if any(one.name == name for one in self.folds) else ""
        self.folds.append(Fold(name, length % WHOLE, result))
        found = self.note(f"{name}({{}}, {passed}, {ends})", total)
        self.named("", after=result, sums=found)
        return found

    def binary(self, sign: str, a: Any, b: Any) -> Any:
        if sign == "+" and of_term(b) and not of_term(a):
            return self._running("{} + {}", a, b)
        return super().binary(sign, a, b)

    def maximum(self, first: Any, second: Any) -> Any:
        larger = "{0} < {1} ? {1} : {0}"
        self.named("", exponent=second)
        if not of_term(second):
            return self.note(larger, first, second)
        if of_term(first):  # the first term itself, or its bound: the least of all exponents, or the bound, begins
            first = NONE if first is second else first.parts[1]
        return self._running(larger, first, second)

    def _running(self, pattern: str, first: Any, term: Any) -> Term:
        """What a loop over terms leaves."""
        operands = (first, term) if isinstance(first, Value) else (term,)
        found: Any = self.value(pattern, term.dtype, BLOCK, operands, (first, term), term.dtype)
        found.running, found.terms = True, None
        return found

    def product(self, a: Any, b: Any) -> Any:
        """The sum of products of terms; None of arrays, whose terms a fold adds."""
        if a is None:
            return self.value("0.0", "float64", BLOCK)
        if a.terms is None:
            return None
        found = self.float64(a) * self.float64(b)
        return 0.0 + found if of_term(found) else found

    def rounded(self, x: Any, number: Number, mode: Rounding, step: int, random_bits: int) -> Any:
        name = f"round_{identifier(number.text)}_{mode.value}"
        self.roundings.setdefault(name, Rounded(name, number, mode))
        return self.note(f"{name}({{}})", x, dtype="float64")

    # Names of `qcore.linalg.namespace` that say the same in C, or nothing.

    def ascending(self, *_: Any) -> None:
        return None

    sequential = by_steps = ascending

    def materialize(self, x: Any) -> Any:
        return x

    def pad(self, x: Any, *_: Any) -> Any:
        return x  # numbers beyond the last are zeros

    def stack(self, parts: Sequence[Any], axis: int) -> Any:
        return parts[0]  # see `order`

    def plus(self, total: Any, found: Any) -> Any:
        return total + found

    def unsigned_zero(self, x: Any) -> Any:
        return x + 0.0

    def float32(self, x: Any) -> Any:
        return self.note("(float){}", x, dtype="float32")

    def astype(self, x: Any, dtype: str) -> Any:
        width = dtype.replace("16", "32")  # of exponents, which fit both
        return self.note(f"({width}_t){{}}", x, dtype=width)

    def trunc(self, x: Any) -> Any:
        return self._cut("truncated({})", x)

    def floor(self, x: Any) -> Any:
        return self._cut("floored({})", x)

    def _cut(self, pattern: str, x: Any) -> Any:
        found = self.note(pattern, x)
        self.named("", cut=found)
        return found


def of_term(x: Any) -> bool:
    return isinstance(x, Value) and x.level == ELEMENT


def _alike(accumulator: Accumulator | None, length: int) -> int:
    """The number of neighbours among a chunk's terms that the law treats alike; 0 if another fold adds the terms."""
    if accumulator is None or length == 1:
        return 1
    law_ = None if accumulator.design is None else accumulator.design.law
    if accumulator.tree or law_ in (PAIRS, EXACT, GROUPED):
        return 1
    if accumulator.fraction_bits is None:
        return 0
    return length // (accumulator.sets if accumulator.align == TWICE else 1)
