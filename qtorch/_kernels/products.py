"""Kernels of sums: 8-bit integers (`integer.c`), accumulators (`product.c`, `chunks.c`) and halves (`sums.c`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from qcore.accumulate.accumulator import Accumulator, rounding_program
from qcore.accumulate.sums.narrow import FloatRule
from qcore.law.carrier import FLOAT64
from qcore.random.steps import MOST_HALF_BITS
from qcore.random.threefry import leading_bits, leading_bits_mask, threefry
from qtorch._kernels.affine import rounding_of_sums
from qtorch._kernels.source import VALUES, declared, needed
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, Trace, Value

TEMPLATE = Path(__file__).with_name("product.c")
CHUNKS, INTEGERS, SUMS = (Path(__file__).with_name(name) for name in ("chunks.c", "integer.c", "sums.c"))
CHANNELS = Path(__file__).with_name("channels.h")


@cache
def sequential(accumulator: Accumulator | None, narrow: bool) -> Function | None:
    """The kernel of a product with a sequential accumulator; None is float64, not rounded.

    `narrow` says that sums in float32 have the same bits, see `qcore.accumulate.law.Sums`.

    A call gives the lengths of the batch, of m, n and k, and the addresses of a, of b, both float32, of the key (or 0),
    and of the result, in float64.
    """
    return load(source(accumulator, narrow))


@cache
def chunked(accumulator: Accumulator | None) -> Function | None:
    """The kernel of a product whose chunks are plain sums; None is one chunk, rounded to float32.

    A call gives the lengths of the batch, of m, n, k and a chunk, the addresses of a, of b, both float32, of the key
    (or 0), and of the float32 result, and two integers for each axis of `qcore.accumulate.places.Places`: the address
    of its places, or 0, and its stride.
    """
    return load(source_of_chunks(accumulator))


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


@cache
def tree_sums() -> Function | None:
    """The kernel of `qcore.numerics.sums.tree_sums`.

    A call gives the addresses of a, of b or 0, both float32, and of the float64 sums, how many dimensions and axes
    there are, the sizes and the axes.
    """
    return load(Template(SUMS.read_text()).substitute(values=VALUES.read_text()))


def source(accumulator: Accumulator | None, narrow: bool) -> str:
    """The kernel's C."""
    sizes = {"rows": 4 if narrow else 2, "columns": 32, "sum": "float" if narrow else "double"}
    return Template(TEMPLATE.read_text()).substitute(_fields(accumulator, narrow) | sizes)


def source_of_chunks(accumulator: Accumulator | None) -> str:
    """The same of `chunked`."""
    chunks = {"chunks": 0 if accumulator is None else 1}
    return Template(CHUNKS.read_text()).substitute(_fields(accumulator, False) | chunks)


def _fields(accumulator: Accumulator | None, narrow: bool) -> dict[str, Any]:
    """What both templates have."""
    words = 0
    if accumulator is not None and accumulator.stochastic:
        words = 4 if accumulator.random_bits <= MOST_HALF_BITS else 1
    constant, rounded = _rounded(accumulator, narrow)
    return {
        "values": VALUES.read_text(),
        "words": words,
        "truncates": int(narrow and _truncates(accumulator)),
        "threefry": _threefry(),
        "constants": "\n    ".join(constant),
        "rounded": "\n                ".join(rounded),
    }


def _threefry() -> str:
    """A function of C: the words of two counters, each a chain of operations, one beside the other."""
    chains = []
    for names in (("high", "low"), ("high2", "low2")):
        trace = Trace()
        counters = [trace.value(name, "int32", ELEMENT) for name in ("key0", "key1", *names)]
        words = threefry(counters[0], counters[1], counters[2], counters[3], rotate=trace.rotate_left)
        chains.append([*_lines(*words), *(f"*y{index} = {word.name};" for index, word in enumerate(words))])
    both = "\n    ".join(line for pair in zip(chains[0], map(_second, chains[1]), strict=True) for line in pair)
    arguments = "int32_t key0, int32_t key1, int32_t high, int32_t low, int32_t high2, int32_t low2"
    results = ", ".join(f"int32_t* y{index}" for index in range(4))
    return f"static inline void threefry({arguments}, {results}) {{\n    {both}\n}}"


def _second(line: str) -> str:
    """A line of the second chain, whose variables and results have other names."""
    return re.sub(r"\bv(\d+)", r"w\1", line).replace("*y1", "*y3").replace("*y0", "*y2")


def _truncates(accumulator: Accumulator | None) -> bool:
    """True if sums in float32 are to be rounded toward zero."""
    return accumulator is not None and FloatRule(accumulator).may_truncate


def _rounded(accumulator: Accumulator | None, narrow: bool) -> tuple[list[str], list[str]]:
    """What comes before loops, and what declares `rounded`, from total, term, and where words are read `drawn`."""
    trace, dtype = Trace(), "float32" if narrow else "float64"
    total, term = (trace.value(name, dtype, ELEMENT) for name in ("total", "term"))
    word = None
    if accumulator is not None and accumulator.stochastic:
        word = leading_bits(trace.value("drawn", "int32", ELEMENT), leading_bits_mask(accumulator.random_bits))
    if accumulator is None or not accumulator.rounds:
        result = total + term + 0.0
    elif narrow:
        rule = FloatRule(accumulator, truncates=_truncates(accumulator))
        result = rule.rounded(trace, trace, rule.plus(trace, total, term) + 0.0, word)
    elif (rule := FloatRule(accumulator, FLOAT64)).by_floats:
        result = rule.rounded(trace, trace, total + term + 0.0, word)
    else:
        program, constants = rounding_program(accumulator.number, accumulator.rounding)
        word = None if word is None else trace.note("(int64_t){} << 32", word, dtype="int64")
        result = trace.floats(program.run(trace, trace.lanes(total + term + 0.0), constants, (), word))
    values = needed([result], ELEMENT)
    lines = [[declared(value) for value in values if value.level == level] for level in (CONSTANT, ELEMENT)]
    return lines[0], [*lines[1], f"const {C_TYPES[dtype]} rounded = {result.name};"]


def _lines(*targets: Value) -> list[str]:
    return [declared(value) for value in needed(targets, ELEMENT)]
