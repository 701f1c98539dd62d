"""Kernels of sums: of accumulators (`product.c`, `chunks.c`), trees (`sums.c`), and integers (`softmax.c`).

Aligned sums and the instructions of chips have `aligned.c` and `unaligned.c`.
"""

from __future__ import annotations

from functools import cache, partial
from math import factorial
from pathlib import Path
from string import Template
from typing import Any

from qcore.law.carrier import FLOAT64
from qcore.law.rounding import Rounding, rounds_distance
from qcore.linalg.accumulator import FLOAT32_NUMBER, NORMALIZED, PRODUCTS, TWICE, Accumulator, rounding_program
from qcore.linalg.designs import EXACT, GROUPED, PAIRS, least_exponent
from qcore.linalg.exactness import FloatRule
from qcore.linalg.steps import GROUP, scale_number
from qcore.random.threefry import MOST_HALF_BITS, leading_bits, leading_bits_mask, threefry
from qcore.trace import C_TYPES, CONSTANT, ELEMENT, Trace, Value, needed
from qcore.writer import WRITER, Writer
from qtorch._kernels.source import VALUES
from qtorch._kernels.store import Function, address, load

TEMPLATE = Path(__file__).with_name("product.c")
CHUNKS, SUMS, ROWS, STEPS, ALIGNED, UNALIGNED, SOFTMAX = (
    Path(__file__).with_name(f"{name}.c")
    for name in ("chunks", "sums", "rows", "steps", "aligned", "unaligned", "softmax")
)
_EXP_TERMS = 14  # of a series of numbers up to log(2) / 2: the next term is below 2^-57
WORDS = Path(__file__).with_name("words.h")


@cache
def sequential(accumulator: Accumulator | None, narrow: bool) -> Function | None:
    """The kernel of a product with a sequential accumulator, or a tree of exact products; None is float64, not rounded.

    With `narrow`, sums are float32; see `qcore.linalg.law.Sums`.

    A call gives the lengths of the batch, of m, n and k, 1 if the sums start at the numbers in the result or 0, and the
    addresses of a, of b, both float32, of the key (or 0), and of the result, in float64.
    """
    return load(source(accumulator, narrow))


@cache
def aligned(accumulator: Accumulator) -> Function | None:
    """The kernel of a product with aligned sums, which may be inside; None if there is none, or no compiler.

    A call gives the lengths of the batch, of m, n, k and an aligned chunk, 1 if the sums start at the numbers in the
    result or 0, the least exponents of a and of b, and the addresses of a, of b, of the scales of their blocks, all
    float32, or 0 without scales, and of the result, in float64. If the instruction has scales, k has whole steps.
    """
    return load(source_of_aligned(accumulator)) if has_aligned(accumulator) else None


def has_aligned(accumulator: Accumulator) -> bool:
    """True if the template has the law: not for stochastic roundings, rounded products and three levels."""
    inner = accumulator.inner or accumulator
    plain = not accumulator.stochastic and inner.product is None and inner.inner is None
    within = accumulator.inner is None or not (inner.order or accumulator.overflow or accumulator.positive_zero)
    late = inner.align != TWICE or (
        (inner.number, inner.rounding, inner.cut) == (FLOAT32_NUMBER, Rounding.NEAREST, Rounding.TOWARD_ZERO)
        and (inner.sum_cut or inner.cut) is Rounding.DOWN
        and inner.subnormals != NORMALIZED
        and not (inner.overflow or inner.positive_zero)
    )
    return plain and within and late


@cache
def unaligned(accumulator: Accumulator) -> Function | None:
    """The kernel of a product by an instruction whose sums are rounded one by one; None if there is no compiler.

    A call gives the lengths of the batch, of m, n and k, which has whole steps, 1 if the sums start at the numbers in
    the result or 0, the least exponents of a and of b, and the addresses of a, of b, both float32, and of the result,
    in float64.
    """
    return load(source_of_unaligned(accumulator))


@cache
def chunked(accumulator: Accumulator | None) -> Function | None:
    """The kernel of a product whose chunks are plain sums; None is one chunk, rounded to float32.

    A call gives the lengths of the batch, of m, n, k and a chunk, 1 if the accumulators start at the numbers in the
    result or 0, the addresses of a, of b, both float32, of the key (or 0), and of the float32 result, and two integers
    for each axis of `qcore.linalg.convolution.Places`: the address of its places, or 0, and its stride.
    """
    return load(source_of_chunks(accumulator))


@cache
def chunked_step(accumulator: Accumulator | None) -> int | None:
    """The address of `chunked` without random words, as a step of a program; see `steps.c`."""
    return address(source_of_chunks(accumulator), "step")


MOST_AXES = 64  # dimensions of an array that is summed, as in `sums.c`


@cache
def tree_sums() -> Function | None:
    """The kernel of `qcore.reproducible.operations.tree_sums`.

    A call gives the addresses of a, of b or 0, both float32, and of the float64 sums, how many dimensions and axes
    there are, the sizes and the axes.
    """
    return load(_plain(SUMS))


@cache
def tree_sums_step() -> int | None:
    """The address of `tree_sums` as a step of a program; see `steps.c`."""
    return address(_plain(SUMS), "step")


@cache
def sums_by_index() -> Function | None:
    """The kernel of `qcore.reproducible.operations.sums_by_index`.

    A call gives the numbers of rows, of columns and of indices, and the addresses of the float32 rows, of their int32
    indices, and of the float64 sums.
    """
    return load(_plain(ROWS))


@cache
def softmax() -> Function | None:
    """The kernel of `qcore.reproducible.operations.softmax` along the last axis.

    A call gives the numbers of rows and columns, `exact_unit`, 1 if rows of -inf are zeros or 0, and the addresses of
    the settled float32 numbers and of the result.
    """
    return load(source_of_softmax())


@cache
def steps() -> Function | None:
    """The function that runs a program: a call gives its address, and the addresses of arrays; see `steps.c`."""
    return load(_plain(STEPS))


def _plain(template: Path, **fields: str) -> str:
    values = VALUES.read_text(encoding="utf-8")
    return Template(template.read_text(encoding="utf-8")).substitute(fields, values=values)


def source(accumulator: Accumulator | None, narrow: bool) -> str:
    """The kernel's C."""
    rows = 4 if narrow else 2
    tree = accumulator.chunk if accumulator is not None and accumulator.tree else 0
    sizes = {"rows": rows, "columns": 32, "sum": "float" if narrow else "double", "tree": tree}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(_fields(accumulator, narrow, rows) | sizes)


def source_of_softmax() -> str:
    """The C of `softmax`."""
    return _plain(SOFTMAX, terms=", ".join((1 / factorial(k)).hex() for k in range(_EXP_TERMS)))


def source_of_chunks(accumulator: Accumulator | None) -> str:
    """The C of `chunked`."""
    chunks = {"chunks": 0 if accumulator is None else 1}
    return Template(CHUNKS.read_text(encoding="utf-8")).substitute(_fields(accumulator, False, 2) | chunks)


def source_of_aligned(accumulator: Accumulator) -> str:
    """The C of `aligned`."""
    inner = accumulator.inner or accumulator
    design = inner.design
    number: Any = inner.number
    late = accumulator.inner is not None
    sets = inner.sets if inner.align == TWICE else 0
    # A program of integers rounds one by one; cutting off is two operations on vectors.
    simple = inner.rounding is Rounding.TOWARD_ZERO and inner.overflow is not None and inner.positive_zero
    cut = simple and not sets and inner.subnormals != NORMALIZED and (number.exp, number.bias) == (8, 127)
    constant, rounded = ([], []) if cut or sets else _rounded(inner, False)
    nearest = (accumulator.number, accumulator.rounding) == (FLOAT32_NUMBER, Rounding.NEAREST)
    late_lines = _rounded(accumulator, False) if late and not nearest else ([], [])
    fields = {
        "values": VALUES.read_text(encoding="utf-8"),
        "infinite": int(inner.overflow is not None),
        "positive": int(inner.positive_zero),
        "beyond": number.span[2] + 1 if inner.overflow is not None else 0,
        "cut_off": "FLOOR" if inner.cut is Rounding.DOWN else "TRUNCATED",
        "cut": int(cut),
        "bits": number.man if cut else 0,
        "apart": int(inner.align == PRODUCTS),
        "sets": sets,
        "sum_bits": inner.sum_bits or inner.fraction_bits,
        "group": GROUP if design and design.law == GROUPED else 1,
        "block": design.block if design else 0,
        "fraction": inner.fraction_bits,
        "least": -1000 if inner.subnormals == NORMALIZED else least_exponent(number),
        "least_scale": least_exponent(scale_number(design)) if design and design.block else 0,
        "zero": "NONE" if inner.zeros is None else f"0x1p{inner.zeros}",
        "constants": "\n    ".join(constant),
        "rounded": "\n        ".join(rounded),
        "late": int(late),
        "late_chunk": accumulator.chunk or 0,
        "late_nearest": int(nearest),
        "late_constants": "\n    ".join(late_lines[0]),
        "late_rounded": "\n        ".join(late_lines[1]),
    }
    return Template(ALIGNED.read_text(encoding="utf-8")).substitute(fields)


def source_of_unaligned(accumulator: Accumulator) -> str:
    """The C of `unaligned`."""
    design = accumulator.design
    assert design is not None
    fields = {
        "values": VALUES.read_text(encoding="utf-8"),
        "step": design.step,
        "law": {PAIRS: 1, EXACT: 2}.get(design.law, 0),
        "flushes": int(design.flushes),
        "signed": int(design.signed_flushes),
    }
    return Template(UNALIGNED.read_text(encoding="utf-8")).substitute(fields)


def _fields(accumulator: Accumulator | None, narrow: bool, chains: int) -> dict[str, Any]:
    """The fields of both templates, `product.c` and `chunks.c`."""
    words = 0
    if accumulator is not None and accumulator.stochastic:
        words = 4 if accumulator.random_bits <= MOST_HALF_BITS else 1
    constant, rounded = _rounded(accumulator, narrow)
    return {
        "values": VALUES.read_text(encoding="utf-8"),
        "words": words,
        "truncates": int(narrow and _truncates(accumulator)),
        "threefry": _words(chains),
        "constants": "\n    ".join(constant),
        "rounded": "\n            ".join(rounded),
    }


def _words(chains: int) -> str:
    """C that draws the random words of several counters side by side."""
    trace = Trace()
    counters = [trace.value(name, "int32", ELEMENT) for name in ("key0", "key1", "high[0]", "low[0]")]
    words = threefry(counters[0], counters[1], counters[2], counters[3], rotate=partial(trace.note, "turned({}, {})"))
    each = [_Chain(place) for place in range(chains)]
    lines = [one.declared(value) for value in needed(words, ELEMENT) for one in each]
    lines += [f"y{index}[0] = {one.name(word)};" for index, word in enumerate(words) for one in each]
    all_lines = "\n    ".join(line.replace("[0]", f"[{place % chains}]") for place, line in enumerate(lines))
    arguments = "Words key0, Words key1, const Words* high, const Words* low, Words* y0, Words* y1"
    law = f"static inline void threefry({arguments}) {{\n    {all_lines}\n}}".replace("const int32_t", "const Words")
    return Template(WORDS.read_text(encoding="utf-8")).substitute(threefry=law)


class _Chain(Writer):
    """C for one of several chains, whose variables stand side by side."""

    def __init__(self, place: int) -> None:
        self.place = place

    def name(self, value: Value) -> str:
        return f"{super().name(value)}_{self.place}"


def _truncates(accumulator: Accumulator | None) -> bool:
    """True if the processor should round sums in float32 toward zero."""
    return accumulator is not None and FloatRule(accumulator).may_truncate


def _rounded(accumulator: Accumulator | None, narrow: bool) -> tuple[list[str], list[str]]:
    """The statements before the loops, and those that declare `rounded` from `total`, `term` and the word `drawn`."""
    trace, dtype = Trace(), "float32" if narrow else "float64"
    total, term = (trace.value(name, dtype, ELEMENT) for name in ("total", "term"))
    sums = total + term + 0.0  # a sum of zeros is +0, whatever their signs
    if accumulator is None or not accumulator._rounds:
        result = sums
    elif narrow:
        rule = FloatRule(accumulator, truncates=_truncates(accumulator))
        sums = rule.plus(trace, total, term) + 0.0
        result = rule.rounded(trace, trace, sums, _word(trace, accumulator, not rule.by_floats))
    elif (rule := FloatRule(accumulator, FLOAT64)).by_floats:
        result = rule.rounded(trace, trace, sums, _word(trace, accumulator, False))
    else:
        program, constants = rounding_program(accumulator.number, accumulator.rounding)
        word = _word(trace, accumulator, True)
        word = None if word is None else trace.note("(int64_t){} << 32", word, dtype="int64")
        result = trace.floats(program.run(trace, trace.lanes(sums), constants, (), word))
    constants, lines = (WRITER.statements([result], ELEMENT, level) for level in (CONSTANT, ELEMENT))
    return constants, [*lines, f"const {C_TYPES[dtype]} rounded = {WRITER.name(result)};"]


def _word(trace: Trace, accumulator: Accumulator, masked: bool) -> Value | None:
    """A random word of 31 bits, with only its leading bits if it is masked; None for accumulators without words."""
    if not accumulator.stochastic:
        return None
    drawn = trace.value("drawn", "int32", ELEMENT)
    if masked:
        half = rounds_distance(accumulator.rounding)
        return leading_bits(drawn, leading_bits_mask(accumulator.random_bits), half)
    return trace.note("(int32_t)((uint32_t){} >> 1)", drawn)
