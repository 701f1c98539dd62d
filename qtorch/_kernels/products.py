"""The kernels of products: of integers (`integer.c`), and with an accumulator that is rounded after every term."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

from qcore.law.program import Program
from qcore.law.rounding import Rounding
from qcore.random.steps import MOST_HALF_BITS
from qcore.random.threefry import leading_bits, leading_bits_mask, threefry
from qtorch._kernels.source import VALUES, declared, needed
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import CONSTANT, ELEMENT, Trace, Value

TEMPLATE = Path(__file__).with_name("product.c")
INTEGERS = Path(__file__).with_name("integer.c")


@cache
def sequential(program: Program | None, constants: tuple[int, ...], random_bits: int) -> Function | None:
    """The kernel of a product whose accumulators are of the program's carrier; without a program float64, not rounded.

    A call gives the lengths of the batch, of m, n and k, and the addresses of a, of b, both float32, of the key (or 0),
    and of the result, in float64.
    """
    return load(source(program, constants, random_bits))


@cache
def of_integers() -> Function | None:
    """The kernel of exact sums of products of 8-bit integers.

    A call gives places and moves of windows, places and steps of their runs, from the outermost of four and of three
    dimensions, the length of a run, the number of outputs, whether a and b are signed and whether b has one zero point,
    and the addresses of a, its zero point, b, its zero points, and the int32 sums.
    """
    return load(Template(INTEGERS.read_text()).substitute(values=VALUES.read_text()))


def source(program: Program | None, constants: tuple[int, ...], random_bits: int) -> str:
    """The kernel's C."""
    narrow = program is not None and program.carrier.lane_bits == 32
    stochastic = program is not None and program.mode is Rounding.STOCHASTIC
    constant, rounded = (
        ([], ["const double rounded = x;"]) if program is None else _rounded(program, constants, random_bits)
    )
    fields = {
        "values": VALUES.read_text(),
        "rows": 4 if narrow else 2,
        "columns": 32,
        "sum": "float" if narrow else "double",
        "words": (4 if random_bits <= MOST_HALF_BITS else 1) if stochastic else 0,
        "threefry": _threefry(),
        "constants": "\n    ".join(constant),
        "rounded": "\n                ".join(rounded),
    }
    return Template(TEMPLATE.read_text()).substitute(fields)


def _threefry() -> str:
    trace = Trace()
    counters = [trace.value(name, "int32", ELEMENT) for name in ("key0", "key1", "high", "low")]
    words = threefry(counters[0], counters[1], counters[2], counters[3], rotate=trace.rotate_left)
    return "\n    ".join(
        [*_lines(*words), *(f"*{name} = {word.name};" for name, word in zip(("y0", "y1"), words, strict=True))]
    )


def _rounded(program: Program, constants: tuple[int, ...], random_bits: int) -> tuple[list[str], list[str]]:
    """What comes before loops, and what declares `rounded`, from x and where words are read `drawn`."""
    trace, width = Trace(), program.carrier.lane_bits
    word = None
    if program.mode is Rounding.STOCHASTIC:
        word = leading_bits(trace.value("drawn", "int32", ELEMENT), leading_bits_mask(random_bits))
        word = trace.note("(int64_t){} << 32", word, dtype="int64") if width == 64 else word
    x = trace.value(f"bits{width}(x)", f"int{width}", ELEMENT)
    result = program.run(trace, x, constants, (), word)
    values = needed([result], ELEMENT)
    lines = [[declared(value) for value in values if value.level == level] for level in (CONSTANT, ELEMENT)]
    return lines[0], [*lines[1], f"const SUM rounded = float{width}({result.name});"]


def _lines(*targets: Value) -> list[str]:
    return [declared(value) for value in needed(targets, ELEMENT)]
