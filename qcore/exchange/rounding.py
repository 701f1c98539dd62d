"""Rounding to formats, and their numbers, as nodes of a graph.

Formats that ONNX has are cast to; what lies beyond their largest number follows from comparisons, since runtimes do not
agree on it. Fixed point is arithmetic with powers of two. Other formats of up to 16 bits are a table: the law's own
results, and the least float32 that rounds to each, in which the graph searches.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from qcore.affine import law
from qcore.arguments import quoted
from qcore.arrays import decode, quantize
from qcore.exchange.graph import Graph, number_of
from qcore.exchange.qonnx import WRITTEN
from qcore.exchange.symbols import Names, Symbol, Weights
from qcore.formats.block import BlockNumber, check_element
from qcore.formats.fixed import FixedPoint
from qcore.formats.number import Number
from qcore.formats.text import parse
from qcore.law.rounding import RoundingName

CASTS = {  # the formats that ONNX has, and how NumPy and ml_dtypes call them
    "float16": "float16",
    "bfloat16": "bfloat16",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2": "float8_e5m2",
    "e5m2fnuz": "float8_e5m2fnuz",
}
_BITS = 16  # of the widest format with a table
_STEPS = {"nearest": "Round", "down": "Floor", "up": "Ceil"}


def rounded(x: Symbol, number: str, rounding: RoundingName, overflow: str) -> Symbol:
    """x rounded to a format, by the law of `qcore.quantize`, in x's dtype.

    Args:
        x: float32, or float16 or bfloat16, which float32 holds.
        number: the format's text.
        rounding: the mode, which draws no random bits.
        overflow: the policy for numbers beyond the format's range; empty for the format's own.

    Raises:
        ValueError: if ONNX cannot say this rounding.

    Example:
        >>> from qcore.exchange.graph import Graph
        >>> graph = Graph("rounded")
        >>> x = Symbol(graph, graph.input("x", "float32", (3,)), "float32", 1)
        >>> rounded(x, "e4m3fn:saturate", "nearest", "").dtype, [node.op_type for node in graph.nodes]
        ('float32', ['Clip', 'Cast', 'Cast'])
    """
    if x.dtype == "float64":
        raise ValueError(
            f"rounding float64 to {quoted(number)} cannot be said in ONNX; allowed are float32 and narrower"
        )
    given, x = x.dtype, Names.astype(x, "float32")
    return Names.astype(_law(number, rounding, overflow)(x, number, rounding, overflow), given)


def scaled(x: Symbol, scale: np.ndarray, number: str, axis: int) -> Symbol:
    """x rounded to a format times one scale, or one for each index of an axis (`qcore.linalg.scaling.round_scaled`)."""
    element = check_element(parse(number))
    scale = scale.reshape(()) if scale.size == 1 else law.along(scale.reshape(-1), axis, x.ndim)
    y = rounded(Names.astype(x, "float32") * (np.float32(1) / scale), element.text, "nearest", "") * scale
    return Names.astype(y, x.dtype)


def _law(text: str, rounding: RoundingName, overflow: str) -> Any:
    number = parse(text)
    wraps = overflow == "wrap" or getattr(number, "wrap", False)
    if not wraps and not isinstance(number, BlockNumber) and not rounding.startswith("stochastic"):
        if rounding == "nearest" and _name(text) in CASTS:
            return _by_cast
        if _is_plain(number) and rounding in _STEPS:
            return _by_steps
        if _has_table(number):
            return _by_table
    raise ValueError(
        f"rounding to {quoted(text)} by {quoted(rounding)} cannot be said in ONNX; allowed are formats of at most "
        f"{_BITS} bits, without scales of blocks or wrapping, and modes without random bits; "
        f"{WRITTEN}"
    )


def _name(text: str) -> str:
    """A format's text without its policy for overflow."""
    return text.partition(":")[0]


def _is_plain(number: Any) -> bool:
    """True for fixed point with a sign whose numbers and powers of two float32 has."""
    return isinstance(number, FixedPoint) and number.signed and number.wl <= 24 and 0 <= number.fl <= 64


def _has_table(number: Number) -> bool:
    """True if the format has few codes."""
    try:
        return number.bits <= _BITS
    except ValueError:  # no codes
        return False


def _by_cast(x: Any, text: str, rounding: RoundingName, overflow: str) -> Symbol:
    """A cast there and back, of x inside the range."""
    number, dtype = parse(text), CASTS[_name(text)]
    largest = _numbers(number)[-1]
    # What a cast makes of larger numbers depends on the type, the opset and the runtime.
    y = Names.clip(x, -largest, largest)
    y = y._made("Cast", dtype=dtype, to=number_of(dtype), saturate=1 if dtype.startswith("float8") else None)
    y = Names.astype(y, "float32")
    points = np.array([largest, np.finfo(np.float32).max, np.inf], np.float32)
    starts, values = _pieces(number, rounding, overflow, points)
    if not len(starts):
        return y
    # A product with infinity has x's sign. `Where` would do, but onnxruntime's makes 0.0 of -0.0.
    factors = np.where(np.isfinite(values), np.float32(1), abs(values))
    return y * _taken(x.graph, factors, _count(abs(x), starts))


def _by_steps(x: Any, text: str, rounding: RoundingName, overflow: str) -> Symbol:
    """Fixed point: products with powers of two, which are exact, around a rounding to integers."""
    number: Any = parse(text)
    low, high = (float(end) for end in _law_of(number, rounding, overflow)(np.array([-np.inf, np.inf], np.float32)))
    step = np.float32(2.0**-number.fl)
    steps = (x * np.float32(2.0**number.fl))._made(_STEPS[rounding])
    return Names.clip(steps * step, low, high)


def _by_table(x: Any, text: str, rounding: RoundingName, overflow: str) -> Symbol:
    """A search for the piece of the law in which x lies."""
    number = parse(text)
    finite = np.finfo(np.float32).max
    points = np.array([-np.inf, -finite, *_numbers(number), finite, np.inf], np.float32)
    starts, values = _pieces(number, rounding, overflow, points)
    levels = len(starts).bit_length()
    # No x is at least NaN, so that the search ends before the places that fill up the table.
    filled = np.concatenate([starts, np.full((1 << levels) - 1 - len(starts), np.nan, np.float32)])
    place: Any = 0
    for level in reversed(range(levels)):
        last = place + np.int32((1 << level) - 1)
        probe: Any = _taken(x.graph, filled, last) if isinstance(last, Symbol) else filled[last]
        place = place + Names.astype(x >= probe, "int32") * np.int32(1 << level)
    zero = np.flatnonzero((starts == 0) & ~np.signbit(starts))
    if len(zero):  # the piece of 0.0 is another than that of -0.0, which comparisons take for 0.0
        negative = (x == 0) & (x._made("Reciprocal") < 0)
        place = place - Names.astype(negative, "int32")
    place = Names.where(x == x, place, np.int32(len(values)))
    return _taken(x.graph, np.append(values, np.float32(np.nan)), place)


def _count(x: Any, starts: np.ndarray) -> Symbol:
    """How many of few thresholds each element has reached, in int32."""
    count: Any = np.int32(0)
    for start in starts:
        count = count + Names.astype(x >= start, "int32")
    return count


def decoded(
    graph: Graph, codes: np.ndarray, scales: Any, scale: Any, number: str, dtype: str, apart: bool = True
) -> Symbol:
    """The numbers of known codes, from a type of ONNX that holds the elements and DequantizeLinear, or as floats.

    Args:
        graph: the graph.
        codes: integers of a format.
        scales, scale: the codes of the scales of blocks, and the scale of the whole, or None.
        number: the format's text.
        dtype: of the result.
        apart: as for `laws.stored`.
    """
    found: Any = parse(number)
    given = scales if scale is None else (scales, scale)
    numbers = decode(codes, found, dtype, scales=given)
    element = getattr(found, "element", found)
    elements, step = decode(codes, element), np.float32(1)
    if isinstance(element, FixedPoint):
        step = np.float32(2.0**-element.fl)
        elements = elements / step
    stored = _smallest(elements)
    factors = None if stored is None or dtype != "float32" else _factors(found, codes.shape, scales, scale, step)
    if stored is not None and factors is not None:
        factor, spread, settings = factors
        exact = np.array_equal(_bits(stored.astype(np.float32) * spread), _bits(numbers))
        wide = stored.dtype.name in ("float16", "bfloat16")  # which DequantizeLinear lacks
        if exact and scales is None and factor == 1:
            return Names.astype(Symbol(graph, graph.constant(stored), stored.dtype.name, stored.ndim), dtype)
        if exact and not wide:
            names = graph.constant(stored), graph.constant(factor)
            made = Weights(graph, graph.node("DequantizeLinear", *names, dtype=dtype, **settings), dtype, numbers.ndim)
            return made._made("Clip") if apart else made
    return Symbol(graph, graph.constant(numbers), dtype, numbers.ndim)


def _smallest(elements: np.ndarray) -> np.ndarray | None:
    """The elements in the narrowest type of ONNX that has them all; None if only float32 has."""
    import ml_dtypes  # a requirement of onnx

    small = "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"
    names = "int4", "uint4", "float4_e2m1fn", "int8", "uint8", *small, "int16", "uint16", "float16", "bfloat16"
    for name in names:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        if "int" in name:
            low, high = (int(end) for end in (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max))
            if not ((elements >= low) & (elements <= high)).all():
                continue
        stored = elements.astype(dtype)
        if np.array_equal(_bits(stored.astype(np.float32)), _bits(elements)):
            return stored
    return None


def _factors(number: Any, shape: tuple[int, ...], scales: Any, scale: Any, step: np.float32) -> Any:
    """The scales of DequantizeLinear, those of each element, and its attributes; None where it lacks such blocks."""
    if scales is None:
        return step, step, {}
    scale_format = number.scale_format
    factors = step * (np.asarray(scales, np.float32) if scale_format is None else decode(scales, scale_format))
    factors = factors if scale is None else factors * np.float32(scale)
    sizes = [
        length if size is None else size for size, length in zip(number.block_sizes(len(shape)), shape, strict=True)
    ]
    spread = factors
    for axis, size in enumerate(sizes):
        spread = np.repeat(spread, size, axis)[(slice(None),) * axis + (slice(shape[axis]),)]
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if len(wide) != 1:
        return (factors.reshape(()), spread, {}) if factors.size == 1 else None
    settings = {"axis": wide[0], "block_size": sizes[wide[0]]}
    if getattr(number, "scale", None) == "e8m0" and number.element.text == "e2m1fn":
        # Nothing but float4 comes with such scales: runtimes have no kernels yet for either.
        import ml_dtypes

        return factors.astype(ml_dtypes.float8_e8m0fnu), spread, settings | {"output_dtype": number_of("float32")}
    return factors, spread, settings


def _taken(graph: Graph, row: np.ndarray, places: Symbol) -> Symbol:
    """The entries of a row at places."""
    name = graph.node("Gather", graph.constant(row), places.name, dtype=row.dtype.name, axis=0)
    return Symbol(graph, name, row.dtype.name, places.ndim)


def _law_of(number: Number, rounding: RoundingName, overflow: str) -> Any:
    return lambda x: quantize(x, number, rounding, overflow=overflow or None)


@cache
def _numbers(number: Number) -> np.ndarray:
    """The finite numbers of a format in ascending order, in float32."""
    found = decode(np.arange(1 << number.bits, dtype=np.uint32), number, "float64")
    found = found[abs(found) <= np.finfo(np.float32).max].astype(np.float32)  # False for NaN
    return _from_ordered(np.unique(_ordered(np.concatenate([found, np.array([-0.0, 0.0], np.float32)]))))


def _pieces(number: Number, rounding: RoundingName, overflow: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pieces on which the law is constant: where all but the first begin, and their values.

    Between two neighbours among the points the law changes at most once.
    """
    law = _law_of(number, rounding, overflow)
    low, high = _ordered(points[:-1]), _ordered(points[1:])
    first, last = _bits(law(points[:-1])), _bits(law(points[1:]))
    changes = first != last
    low, high, first = low[changes], high[changes], first[changes]
    while (high - low > 1).any():  # the law of `low` is that of the point before, the law of `high` is another
        middle = (low + high) // 2
        same = _bits(law(_from_ordered(middle))) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    starts = _from_ordered(high)
    return starts, np.concatenate([law(points[:1]), law(starts)])


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.int32)


def _ordered(x: np.ndarray) -> np.ndarray:
    """Integers in the order of floats, -0.0 before 0.0."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)


def _from_ordered(places: np.ndarray) -> np.ndarray:
    bits = np.where(places < 0, (-places - 1) | 0x80000000, places)
    return bits.astype(np.uint32).view(np.float32)
