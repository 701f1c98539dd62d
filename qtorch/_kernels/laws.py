"""Kernels of the law of rounding: they round and encode tensors, and decode codes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from qcore.law.carrier import Carrier
from qcore.law.program import Decoding, Program
from qcore.law.rounding import rounds_distance
from qcore.law.tiles import Matrix
from qcore.random.threefry import leading_bits, threefry
from qcore.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, TENSOR, Row, Trace, Value
from qtorch._kernels.source import Argument, Kernel, Result
from qtorch._kernels.store import Function, address, load

# The layouts of a tensor in a kernel, and the axes along which a block has several elements: rows (0), columns (1).
# "flat" and "places" have no blocks, and the elements of "places" are not in the order of their indices. Rows of short
# blocks become straight code, where tests and remainders of loops would take as long as the vectors.
WIDTHS = {f"tiles of {width} columns": width for width in (8, 16, 32, 64)}
LAYOUTS = {"flat": (), "places": (), "whole": (0, 1), "tiles": (1,), "columns": (1,)} | dict.fromkeys(WIDTHS, (1,))
IN_ROWS, MEMBERS = ("te_mae", "te_mse"), 16  # rules that compare the errors of blocks of so many elements in a row
_SIZES = {"flat": 1, "places": 7}


def layout_of(matrix: Matrix) -> str:
    """The layout of a tensor with blocks."""
    if matrix.counts == (1, 1):
        return "whole"
    if matrix.block_columns == 1:
        return "columns"
    return next((layout for layout, width in WIDTHS.items() if width == matrix.block_columns), "tiles")


@cache
def rounding(program: Program, layout: str) -> Function | None:
    """The kernel that rounds, or encodes.

    A call gives the sizes, then the addresses of x, of the program's constants, for stochastic rounding of the key, the
    window (see `Noise`) and, of the layout "places", the elements' indices, then of the results.
    """
    compares = program.rule in IN_ROWS and WIDTHS.get(layout) == MEMBERS
    return load(rounding_kernel(program, layout).source()) if program.has_kernels or compares else None


@cache
def rounding_step(program: Program, layout: str) -> int | None:
    """The address of `rounding` without random words, as a step of a program; see `steps.c`."""
    return address(rounding_kernel(program, layout).source(), "step") if program.has_kernels else None


@cache
def decoding(decoding: Decoding, storage: str, layout: str) -> Function | None:
    """The kernel that decodes codes in integers of a dtype.

    A call gives the sizes, then the addresses of the codes, of the constants, of the scales of blocks and of the scale
    of the tensor (as far as the format has them), and of the result.
    """
    return load(decoding_kernel(decoding, storage, layout).source())


@cache
def following(width: int) -> Function | None:
    """The kernel of `qtorch._rounding.many.follow_each`, for elements of a width in bits.

    Where a weight differs from the number that was written to it, the value becomes the weight; then `written` becomes
    a copy of the weights. A call gives the number of elements, then the addresses of values, weights and `written`,
    which are read, and of values and `written`, which are written.
    """
    trace, dtype = Trace(), f"int{width}"
    names = ("value", "weight", "written")
    value, weight, written = (trace.value(f"{name}[j]", dtype, ELEMENT) for name in names)
    results = [Result("followed", trace.where(weight == written, value, weight), dtype), Result("kept", weight, dtype)]
    return load(Kernel(trace, [Argument(name, dtype, ELEMENT) for name in names], results).source())


def rounding_kernel(program: Program, layout: str) -> Kernel:
    """The traced kernel that rounds, or encodes."""
    carrier = program.carrier
    trace, lane, stored = Trace(carrier.name), f"int{carrier.lane_bits}", f"int{carrier.stored_bits}"
    arguments = [Argument("x", stored, ELEMENT), Argument("constants", lane)]
    word = None
    if program.mode.stochastic:
        arguments += [Argument("key", "int32"), Argument("window", "int32")]
        arguments += [Argument("places", "int32", TENSOR)] if layout == "places" else []
        word = random_word(trace, layout == "places", carrier, rounds_distance(program.mode))
    x = trace.value("x[j]", lane, ELEMENT)
    bits = x << carrier.padding if carrier.padding else x  # 16 bits become the upper end of a lane: one law for both
    given = trace, bits, program.split(Constants(trace, lane)), LAYOUTS[layout]
    others = [_neighbour(trace, place, carrier) for place in range(1, program.together)]
    if program.rule in IN_ROWS:
        others = [_member(trace, place, carrier) for place in range(MEMBERS)]
    found, condition = [program.run(*given, word, others=others)], program.usual(*given)
    if condition is not None and condition.level == BLOCK:  # without blocks there is no pass that could ask
        found.append(program.run(*given, word, usual=True))
    reduced, padding = lane, 0
    if program.codes:
        scales = lane if program.float_scales else f"uint{program.scale_storage}"
        dtypes = f"uint{program.storage}", scales, lane
        every = [zip(("codes", "scales", "scale"), _as_tuple(one), dtypes, strict=False) for one in found]
    else:
        numbers = [_number(trace, one, carrier) for one in found]
        if carrier.padding:
            with suppress(NarrowingError):
                numbers, reduced, padding = halve(trace, found, carrier.padding), stored, carrier.padding
        every = [[("result", number, stored)] for number in numbers]
    results, *usual = [[Result(*one) for one in each] for each in every]
    sizes, width = _SIZES.get(layout, 4), WIDTHS.get(layout, 0)
    kernel = Kernel(trace, arguments, results, sizes, layout == "columns", True, reduced, width, padding)
    kernel.usual = replace(kernel, results=usual[0], condition=condition) if usual else None
    return kernel


def decoding_kernel(decoding: Decoding, storage: str, layout: str) -> Kernel:
    """The traced kernel that decodes."""
    trace, carrier = Trace(), decoding.carrier
    lane, stored = f"int{carrier.lane_bits}", f"int{carrier.stored_bits}"
    arguments = [Argument("codes", storage, ELEMENT), Argument("constants", lane)]
    codes = trace.value("codes[j]", lane, ELEMENT)
    scales = scale = None
    if decoding.scales:
        of_blocks = lane if decoding.scales == "floats" else f"uint{decoding.scale_storage}"
        arguments.append(Argument("scales", of_blocks, BLOCK))
        scales = trace.value("scales[j]", lane, BLOCK)
    if decoding.has_array_scale:
        arguments.append(Argument("scale", lane))
        scale = trace.value("scale[0]", lane, CONSTANT)
    constants = decoding.split(Constants(trace, lane))

    def results(usual: bool) -> list[Result]:
        lanes = decoding.run(trace, codes, constants, scales, scale, usual)
        return [Result("result", _number(trace, lanes, carrier), stored)]

    sizes, width = _SIZES.get(layout, 4), WIDTHS.get(layout, 0)
    kernel = Kernel(trace, arguments, results(False), sizes, layout == "columns", True, lane, width)
    condition = decoding.usual(constants, scales)
    kernel.usual = None if condition is None else replace(kernel, results=results(True), condition=condition)
    return kernel


def random_word(trace: Trace, placed: bool, carrier: Carrier, half: bool) -> Value:
    """The random word of an element as a lane; `kernel.c` has the index of a run's first element.

    All indices of a run have the same high word, except indices from a table.
    """
    place, carry = ("places[j]", " + (int32_t)(low + (uint32_t)places[j] < low)") if placed else ("j", "")
    low = trace.value(f"(int32_t)(low + (uint32_t){place})", "int32", ELEMENT)
    high = trace.value(f"high{carry}", "int32", ELEMENT)
    key0, key1, mask = (trace.value(text, "int32", CONSTANT) for text in ("key[0]", "key[1]", "window[2]"))
    y0, y1 = threefry(key0, key1, high, low, rotate=trace.rotate_left)
    word = leading_bits(y0 ^ y1, mask, half)
    return word if carrier.lane_bits == 32 else trace.note("(int64_t){} << 32", word, dtype="int64")


def _neighbour(trace: Trace, place: int, carrier: Carrier) -> Value:
    """The lane of another element of a sub-block; sub-blocks begin at multiples of their length in a row."""
    x = trace.value(f"x[(((int32_t)begin + j) ^ {place}) - (int32_t)begin]", f"int{carrier.lane_bits}", ELEMENT)
    return x << carrier.padding if carrier.padding else x


def _member(trace: Trace, place: int, carrier: Carrier) -> Value:
    """The lane of an element of a block, for values of blocks: rows have whole blocks of `MEMBERS` elements."""
    stored = C_TYPES[f"int{carrier.stored_bits}"]
    text = f"((const {stored}*)call->pointers[P_x])[(first + j) * {MEMBERS} + {place}]"
    x = trace.value(text, f"int{carrier.lane_bits}", BLOCK)
    return x << carrier.padding if carrier.padding else x


class Constants:
    """The integers of a law's constants in a kernel, an array with a name: values, and rows of them."""

    def __init__(self, trace: Trace, lane: str, name: str = "constants") -> None:
        self.trace, self.lane, self.name = trace, lane, name

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Row(self.trace, self.name, self.lane, place.start, place.stop - place.start)
        return self.trace.value(f"{self.name}[{place}]", self.lane, CONSTANT)


def _number(trace: Trace, lane: Value, carrier: Carrier) -> Any:
    return lane >> carrier.padding if carrier.padding else lane


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


# 16-bit numbers in lanes of 32 bits are shifted to the left by their carrier's `padding`. To nearest, NVFP4 only
# compares, selects and masks elements. The same operations on the high bits alone, without the padding, have the high
# bits of the same results, and vectors hold twice as many lanes of 16 bits.


class NarrowingError(Exception):
    """The high bits of a value do not follow from the high bits of its operands."""


def halve(trace: Trace, results: Iterable[Value], padding: int) -> list[Value]:
    """The high bits of results, computed from the high bits of x. The trace's maxima become maxima of high bits.

    Args:
        trace: the trace of a law whose values of blocks are not negative.
        results: the lanes of elements.
        padding: the number of low bits of x's lanes that are zero.

    Raises:
        NarrowingError: if other bits matter; the results and the maxima are then as they were.
    """
    found = [_high(trace, result, padding) for result in results]
    reduced = [one.operands[0] for one in trace.maxima]
    if not all(_has_zeros(one, padding) for one in reduced):
        raise NarrowingError
    halves = [_high(trace, one, padding) for one in reduced]
    for maximum, half in zip(trace.maxima, halves, strict=True):
        maximum.operands = (half,)
    return found


def _high(trace: Trace, value: Any, padding: int) -> Any:
    """The high bits of a lane, or of a number."""
    if not isinstance(value, Value):
        return value >> padding
    if value.level < ELEMENT:
        return trace.note("{} >> {}", value, padding, dtype="int16")
    match value.text, value.parts:
        case "{} << {}", (Value(text="x[j]"), shift) if shift == padding:
            return trace.value("x[j]", "int16", ELEMENT)
        case (("{} & {}" | "{} | {}"), (a, b)):
            return trace.note(value.text, _high(trace, a, padding), _high(trace, b, padding))
        case "{} > {}", (a, b) if _has_zeros(a, padding):
            return trace.note(value.text, _high(trace, a, padding), _high(trace, b, padding))
        case "{} ? {} : {}", (condition, a, b):
            return trace.where(*(_high(trace, one, padding) for one in (condition, a, b)))
    raise NarrowingError


def _has_zeros(value: Any, padding: int) -> bool:
    """True if a lane's low bits are zero, by the form of its expression."""
    if not isinstance(value, Value):
        return value & ((1 << padding) - 1) == 0
    match value.text, value.parts:
        case "{} << {}", (_, shift):
            return shift == padding
        case "{} & {}", (a, b):
            return _has_zeros(a, padding) or _has_zeros(b, padding)
        case "{} ? {} : {}", (_, a, b):
            return _has_zeros(a, padding) and _has_zeros(b, padding)
    return False
