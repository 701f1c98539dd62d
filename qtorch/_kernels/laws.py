"""The kernels of the law: what rounds tensors, and what decodes codes."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from qcore.law.blocks.tiles import Matrix
from qcore.law.carrier import Carrier
from qcore.law.program import Decoding, Program
from qcore.law.rounding import Rounding
from qcore.random.threefry import leading_bits, threefry
from qtorch._kernels.source import Argument, Kernel, Result
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import BLOCK, CONSTANT, ELEMENT, TENSOR, NarrowingError, Trace, Value, halve

# How a kernel sees a tensor, and along which of its rows (0) and columns (1) there are several elements in a block.
# "flat" and "places" have no blocks, and the elements of "places" are not in the order of their indices. Rows of short
# blocks become straight code, where tests and remainders of loops would take as long as the vectors.
WIDTHS = {f"tiles of {width} columns": width for width in (8, 16, 32, 64)}
LAYOUTS = {"flat": (), "places": (), "whole": (0, 1), "tiles": (1,), "columns": (1,)} | dict.fromkeys(WIDTHS, (1,))
_SIZES = {"flat": 1, "places": 7}


def layout_of(matrix: Matrix) -> str:
    """How the kernels of rounding see a tensor with blocks."""
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
    return load(rounding_kernel(program, layout).source())


@cache
def decoding(decoding: Decoding, storage: str, layout: str) -> Function | None:
    """The kernel that decodes codes in integers of a dtype.

    A call gives the sizes, then the addresses of the codes, of the constants, of the blocks' scales and of the tensor's
    as far as there are any, and of the result.
    """
    return load(decoding_kernel(decoding, storage, layout).source())


@cache
def following(width: int) -> Function | None:
    """The kernel that finds what others changed, for elements of so many bits.

    Where a weight is not what was written to it, its value becomes the weight's; what was written becomes the weights.
    A call gives the number of elements, then the addresses of values, weights, what was written to these, and again of
    values and of what was written.
    """
    trace, dtype = Trace(), f"int{width}"
    names = ("value", "weight", "written")
    value, weight, written = (trace.value(f"{name}[j]", dtype, ELEMENT) for name in names)
    results = [Result("followed", trace.where(weight == written, value, weight), dtype), Result("kept", weight, dtype)]
    return load(Kernel(trace, [Argument(name, dtype, ELEMENT) for name in names], results).source())


def rounding_kernel(program: Program, layout: str) -> Kernel:
    carrier = program.carrier
    trace, lane, stored = Trace(carrier.name), f"int{carrier.lane_bits}", f"int{carrier.stored_bits}"
    arguments = [Argument("x", stored, ELEMENT), Argument("constants", lane)]
    word = None
    if program.mode is Rounding.STOCHASTIC:
        arguments += [Argument("key", "int32"), Argument("window", "int32")]
        arguments += [Argument("places", "int32", TENSOR)] if layout == "places" else []
        word = _word(trace, layout == "places", carrier)
    x = trace.value("x[j]", lane, ELEMENT)
    bits = x << carrier.padding if carrier.padding else x
    found = program.run(trace, bits, _constants(trace, program.count(), lane), LAYOUTS[layout], word)
    reduced, padding = lane, 0
    if program.codes:
        found = found if isinstance(found, tuple) else (found,)
        dtypes = f"uint{program.storage}", "uint8", lane
        results = [Result(*one) for one in zip(("codes", "scales", "scale"), found, dtypes, strict=False)]
    else:
        number = _number(trace, found, carrier)
        if carrier.padding:
            with suppress(NarrowingError):
                number, reduced, padding = halve(trace, found, carrier.padding), stored, carrier.padding
        results = [Result("result", number, stored)]
    sizes, width = _SIZES.get(layout, 4), WIDTHS.get(layout, 0)
    return Kernel(trace, arguments, results, sizes, layout == "columns", True, reduced, width, padding)


def decoding_kernel(decoding: Decoding, storage: str, layout: str) -> Kernel:
    trace, carrier = Trace(), decoding.carrier
    lane, stored = f"int{carrier.lane_bits}", f"int{carrier.stored_bits}"
    arguments = [Argument("codes", storage, ELEMENT), Argument("constants", lane)]
    codes = trace.value("codes[j]", lane, ELEMENT)
    scales = scale = None
    if decoding.scales:
        arguments.append(Argument("scales", "uint8", BLOCK))
        scales = trace.value("scales[j]", lane, BLOCK)
    if decoding.scales == "two levels":
        arguments.append(Argument("scale", lane))
        scale = trace.value("scale[0]", lane, CONSTANT)
    lanes = decoding.run(trace, codes, _constants(trace, decoding.count(), lane), scales, scale)
    results = [Result("result", _number(trace, lanes, carrier), stored)]
    sizes, width = _SIZES.get(layout, 4), WIDTHS.get(layout, 0)
    return Kernel(trace, arguments, results, sizes, layout == "columns", True, lane, width)


def _word(trace: Trace, placed: bool, carrier: Carrier) -> Value:
    """The random word of an element as a lane; `kernel.c` knows the index of a run's first element.

    All indices of a run have the same high word, but for those that come from a table.
    """
    place, carry = ("places[j]", " + (int32_t)(low + (uint32_t)places[j] < low)") if placed else ("j", "")
    low = trace.value(f"(int32_t)(low + (uint32_t){place})", "int32", ELEMENT)
    high = trace.value(f"high{carry}", "int32", ELEMENT)
    key0, key1, mask = (trace.value(text, "int32", CONSTANT) for text in ("key[0]", "key[1]", "window[2]"))
    y0, y1 = threefry(key0, key1, high, low, rotate=trace.rotate_left)
    word = leading_bits(y0 ^ y1, mask)
    return word if carrier.lane_bits == 32 else trace.note("(int64_t){} << 32", word, dtype="int64")


def _constants(trace: Trace, count: int, lane: str) -> list[Value]:
    return [trace.value(f"constants[{index}]", lane, CONSTANT) for index in range(count)]


def _number(trace: Trace, lane: Value, carrier: Carrier) -> Any:
    return lane >> carrier.padding if carrier.padding else lane
