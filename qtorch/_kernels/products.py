"""The kernels of products: of integers (`integer.c`), and with an accumulator that is rounded after every term."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

from qcore.accumulate.accumulator import Accumulator, rounding_program
from qcore.accumulate.sums.narrow import NarrowRule
from qcore.random.threefry import leading_bits, leading_bits_mask, threefry
from qtorch._kernels.affine import rounding_of_sums
from qtorch._kernels.source import VALUES, declared, needed
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import BLOCK, CONSTANT, ELEMENT, Trace, Value

TEMPLATE = Path(__file__).with_name("product.c")
INTEGERS, CHANNELS = (Path(__file__).with_name(name) for name in ("integer.c", "channels.h"))


@cache
def sequential(accumulator: Accumulator | None, narrow: bool) -> Function | None:
    """The kernel of a product with a sequential accumulator; None is float64, not rounded.

    `narrow` says that sums in float32 have the same bits, see `qcore.accumulate.law.Sums`.

    A call gives the lengths of the batch, of m, n and k, and the addresses of a, of b, both float32, of the key (or 0),
    and of the result, in float64.
    """
    return load(source(accumulator, narrow))


@cache
def of_integers(biased: bool = False) -> Function | None:
    """The kernel of exact sums of products of 8-bit integers, which it may round by `qcore.affine.requantize`.

    A call gives places and moves of windows, places and steps of their runs, from the outermost of four and of three
    dimensions, the length of a run, the number of outputs, whether each output sees one channel, whether a and b are
    signed, whether b has one zero point, whether sums are rounded, and the addresses of a, its zero point, b, its zero
    points, and the int32 sums or 8-bit integers. If they are rounded, there follow the addresses of the scales and,
    where the kernel is `biased`, the biases of all outputs, of the scale of a, of the result's scale and zero point,
    and of the ends of its range.
    """
    _, _, q = rounding_of_sums("int32", biased, "columns")
    element = needed([q], ELEMENT)
    handed = [value for value in element if value.level == BLOCK]
    of_outputs = [value for value in needed(handed, BLOCK) if value.level in (CONSTANT, BLOCK)]
    store = [f"to[{place} * COLUMNS + column] = {value.name};" for place, value in enumerate(handed)]
    fields = {
        "values": VALUES.read_text() + f"\n#define HANDED {len(handed)}\n",
        "channels": CHANNELS.read_text(),
        "outputs": "\n        ".join([*map(declared, of_outputs), *store]),
        "constants": "\n    ".join(declared(value) for value in element if value.level == CONSTANT),
        "rounded": "\n            ".join(
            [
                *(declared(value, f"of_outputs[{place} * COLUMNS + j]") for place, value in enumerate(handed)),
                *(declared(value) for value in element if value.level == ELEMENT),
                f"wide[j] = {q.name};",
            ]
        ),
    }
    return load(Template(INTEGERS.read_text()).substitute(fields))


def source(accumulator: Accumulator | None, narrow: bool) -> str:
    """The kernel's C."""
    words = 0
    if accumulator is not None and accumulator.stochastic:
        words = 4 if accumulator.shares_words else 1
    constant, rounded = _rounded(accumulator, narrow)
    fields = {
        "values": VALUES.read_text(),
        "rows": 4 if narrow else 2,
        "columns": 32,
        "sum": "float" if narrow else "double",
        "words": words,
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


def _rounded(accumulator: Accumulator | None, narrow: bool) -> tuple[list[str], list[str]]:
    """What comes before loops, and what declares `rounded`, from total, term, and where words are read `drawn`."""
    trace, dtype = Trace(), "float32" if narrow else "float64"
    total, term = (trace.value(name, dtype, ELEMENT) for name in ("total", "term"))
    word = None
    if accumulator is not None and accumulator.stochastic:
        word = leading_bits(trace.value("drawn", "int32", ELEMENT), leading_bits_mask(accumulator.random_bits))
        word = word if narrow else trace.note("(int64_t){} << 32", word, dtype="int64")
    if accumulator is None or not accumulator.rounds:
        result = total + term + 0.0
    elif narrow:
        rule = NarrowRule(accumulator)
        result = rule.rounded(trace, trace, rule.plus(trace, total, term) + 0.0, word)
    else:
        program, constants = rounding_program(accumulator.number, accumulator.rounding)
        bits = trace.note("bits64({})", total + term + 0.0, dtype="int64")
        result = trace.note("float64({})", program.run(trace, bits, constants, (), word), dtype="float64")
    values = needed([result], ELEMENT)
    lines = [[declared(value) for value in values if value.level == level] for level in (CONSTANT, ELEMENT)]
    return lines[0], [*lines[1], f"const SUM rounded = {result.name};"]


def _lines(*targets: Value) -> list[str]:
    return [declared(value) for value in needed(targets, ELEMENT)]
