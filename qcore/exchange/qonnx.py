"""Roundings and fake quantization as nodes of QONNX: Quant, FloatQuant and BipolarQuant, for tools that build hardware.

A node is written only if it has the law's results for all finite float32 numbers, but for the sign of zeros; other
formats and modes are a ValueError that says why. Quant divides by the scale, clips, and rounds float32 numbers; so the
scale is a power of two, the zero point is 0, and integers have at most 24 bits. FloatQuant reads the exponent from a
float32 logarithm, has subnormal numbers, and makes NaN of infinity. Quant keeps NaN, where affine integers have their
lowest number.
"""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np

from qcore.affine import law
from qcore.affine.integers import AffineInteger
from qcore.arguments import quoted
from qcore.arrays import decode, encode
from qcore.exchange.graph import Graph
from qcore.exchange.symbols import Names, Symbol, is_known, name_of
from qcore.formats.block import check_element
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, check_number, with_overflow
from qcore.law.carrier import CARRIERS

DOMAIN = "qonnx.custom_op.general"
_ROUNDINGS = {
    "nearest": "ROUND",
    "nearest_zero": "HALF_DOWN",
    "toward_zero": "DOWN",
    "away": "UP",
    "up": "CEIL",
    "down": "FLOOR",
}
_OF_FLOATS = ("nearest", "nearest_zero")
_COUNTED = 24  # bits of integers that float32 counts
_MANTISSA = 22
_LOWEST = -125  # of the exponents of steps: FloatQuant adds 2^-126 to numbers before it takes their logarithm
INTEGERS = (
    "QONNX has no integers, and not the law that makes them from sums; allowed are layers of formats, as a QConfig of "
    "fixed point gives them, and fake quantization; to_onnx writes layers of integers"
)
WRITTEN = (
    f"to_qonnx writes fixed point that saturates, of at most {_COUNTED} bits and a sign, and to nearest floats with "
    f"subnormal numbers, mantissas of 1 to {_MANTISSA} bits, and no step below 2^{_LOWEST}"
)


def rounded(
    graph: Graph, x: Any, number: Number | str, rounding: str = "nearest", overflow: str | None = None
) -> Symbol:
    """x rounded to a format: `qcore.quantize`, as one node.

    Args:
        graph: the graph.
        x: a float32 symbol, or a known array, which the node rounds when the graph runs.
        number: the format: fixed point with a range, or a float.
        rounding: its mode; for floats nearest or nearest_zero.
        overflow: the policy for numbers beyond the range; None is the format's own.

    Raises:
        ValueError: if QONNX has no node with this law.

    Example:
        >>> graph = Graph("rounded")
        >>> x = Symbol(graph, graph.input("x", "float32", (3,)), "float32", 1)
        >>> y = rounded(graph, x, "fixed(8,4)")
        >>> graph.nodes[0].op_type, [graph.constants[name].item() for name in graph.nodes[0].input[1:]]
        ('Quant', [0.0625, 0.0, 8.0])
    """
    found = with_overflow(check_number(number), overflow or None)
    what = f"{quoted(found.text)} by {quoted(rounding)}"
    if Names.dtype(x) != "float32":
        raise _refused(what, f"{Names.dtype(x)} numbers; QONNX's are float32")
    if rounding not in _ROUNDINGS:
        raise _refused(what, f"no such rounding; it has {', '.join(_ROUNDINGS)}")
    if isinstance(found, FixedPoint):
        return _fixed(graph, x, found, rounding, what)
    if isinstance(found, BinaryFloat | FloatingPoint):
        return _float(graph, x, found, rounding, what)
    raise _refused(what, "no numbers but fixed point and floats with a common exponent width")


def round_scaled(graph: Graph, x: Any, scale: Any, number: str, axis: int) -> Symbol:
    """x rounded to a format times known scales (`qcore.exchange.rounding.scaled`), as a node between two products.

    Args:
        graph: the graph.
        x: a float32 symbol, or a known array.
        scale: a known array of one scale, or of one for each index of the axis.
        number: the format's text.
        axis: the axis of the scales.

    Raises:
        ValueError: if QONNX has no node with this law, or the scale is computed.
    """
    element = check_element(check_number(number))
    if not is_known(scale):
        raise _refused(f"{quoted(number)} with a scale of the call", "scales that are computed")
    scale = np.asarray(scale, np.float32)
    ndim = x.ndim if isinstance(x, Symbol) else np.ndim(x)
    scale = scale.reshape(()) if scale.size == 1 else law.along(scale.reshape(-1), axis, ndim)
    return rounded(graph, x * (np.float32(1) / scale), element) * scale


def stored(graph: Graph, codes: Any, scales: Any, scale: Any, number: str) -> Symbol:
    """The numbers of known codes with scales: elements, with the node that rounds to their format, times the scales.

    Numbers of formats that QONNX lacks are constants. QONNX's executor has no arrays of float8 or 4 bits.
    """
    found: Any = check_number(number)
    given = scales if scale is None else (scales, scale)
    numbers = decode(codes, found, scales=given)
    try:
        elements = rounded(graph, decode(codes, found.element), found.element)
    except ValueError:
        return Symbol(graph, graph.constant(numbers), "float32", numbers.ndim)
    unit = found.element.fl if isinstance(found.element, FixedPoint) else 0  # an element that is a power of two
    one = encode(np.full(codes.shape, 2.0**-unit, np.float32), found.element)
    factors: Any = decode(one, found, scales=given) * np.float32(2.0**unit)
    for place in range(factors.ndim):
        first = factors.take([0], place)
        factors = first if (factors == first).all() else factors
    return elements * factors


def fake_quantize(graph: Graph, x: Any, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`qcore.affine.fake_quantize` as one Quant node: for scales that are powers of two, and zero points of 0.

    Args:
        graph: the graph.
        x: a float32 symbol, or a known array.
        scale, zero_point: known arrays of shape (), or (channels,) along the axis.
        axis: the axis of the channels, or None.
        form: the integers.

    Raises:
        ValueError: if QONNX has no node with this law.
    """
    what = f"fake quantization to {quoted(form.text)}"
    if not is_known(scale, zero_point):
        raise _refused(what, "parameters that are computed")
    scale, zero_point = np.asarray(scale, np.float32), np.asarray(zero_point)
    if (zero_point != 0).any():
        raise _refused(what, "zero points that take no part in ties: symmetric integers have zero points of 0")
    if any(frexp(float(one))[0] != 0.5 for one in scale.reshape(-1)):
        raise _refused(what, "products with a reciprocal: scales that are powers of two have the same quotients")
    bits = max(form.qmax.bit_length(), (-form.qmin - 1).bit_length() if form.qmin < 0 else 0) + (form.qmin < 0)
    for signed, narrow in ((1, 0), (1, 1), (0, 0), (0, 1)):
        if (form.qmin, form.qmax) == ends(bits, signed, narrow):
            break
    else:
        raise _refused(what, "such a range; it has those of two's complement, also without the least or the greatest")
    ndim = x.ndim if isinstance(x, Symbol) else np.ndim(x)
    if scale.ndim:
        scale = scale.reshape(tuple(-1 if place == axis else 1 for place in range(ndim)))
    return _quant(graph, x, scale, bits, signed, narrow, "ROUND", what)


def bipolar(graph: Graph, x: Any, scale: float) -> Symbol:
    """The scale where x is at least 0, else its negative."""
    return _node(graph, "BipolarQuant", x, _constant(graph, "scale", scale))


def ends(bits: int, signed: int, narrow: int) -> tuple[int, int]:
    """The least and the greatest integer of Quant."""
    half = 1 << (bits - 1)
    return (-half + narrow, half - 1) if signed else (0, 2 * half - 1 - narrow)


def _fixed(graph: Graph, x: Any, number: FixedPoint, rounding: str, what: str) -> Symbol:
    if number.wrap or not number.clamp:
        raise _refused(what, "wrapping, or numbers without a range; clamp=True saturates")
    if number.fl < 0 and rounding in ("away", "up", "down"):
        raise _refused(what, "subnormal quotients, which it would round to 0; allowed is fl from 0 on")
    scale = np.float32(2.0**-number.fl) if -126 <= -number.fl <= 127 else np.float32(0)
    if not scale:
        raise _refused(what, "such a scale in float32")
    return _quant(graph, x, scale, number.wl, int(number.signed), int(number.symmetric), _ROUNDINGS[rounding], what)


def _quant(graph: Graph, x: Any, scale: Any, bits: int, signed: int, narrow: int, mode: str, what: str) -> Symbol:
    if bits - signed > _COUNTED - (mode == "HALF_DOWN"):
        raise _refused(what, f"{bits} bits in float32 numbers; allowed are {_COUNTED} bits and a sign")
    if bits == 1 and signed:
        raise _refused(what, "a signed bit that stands for -1 and 0; its numbers are -1 and 1")
    constants = [_constant(graph, name, one) for name, one in (("scale", scale), ("zeropt", 0.0), ("bitwidth", bits))]
    return _node(graph, "Quant", x, *constants, signed=signed, narrow=narrow, rounding_mode=mode)


def _float(graph: Graph, x: Any, number: BinaryFloat | FloatingPoint, rounding: str, what: str) -> Symbol:
    if rounding not in _OF_FLOATS:
        raise _refused(what, "directed rounding of floats: its logarithm rounds up next below powers of two")
    if not number.subnormals or not getattr(number, "signed", True):
        raise _refused(what, "floats without subnormal numbers or without negative ones")
    lowest, (count, exponent) = number.magnitudes.lowest, number.magnitudes.largest
    if not 1 <= number.man <= _MANTISSA or lowest - number.man < _LOWEST:
        raise _refused(what, f"steps below 2^{_LOWEST}, or other mantissas than those of 1 to {_MANTISSA} bits")
    if count.bit_length() + exponent > CARRIERS["float32"].max_exponent + 1:
        raise _refused(what, "numbers beyond float32")
    policy = getattr(number, "overflow", "saturate")
    if policy == "propagate" or (policy == "inf" and not getattr(number, "has_infinity", False)):
        raise _refused(what, f"the overflow policy {quoted(policy)}; allowed are 'saturate', 'nan' and 'inf'")
    numbers = {
        "scale": 1.0,
        "exponent_bitwidth": number.exp,
        "mantissa_bitwidth": number.man,
        "exponent_bias": 1 - lowest,
        "max_val": count * 2.0**exponent,
    }
    return _node(
        graph,
        "FloatQuant",
        x,
        *(_constant(graph, name, one) for name, one in numbers.items()),
        has_inf=int(policy == "inf"),
        has_nan=int(getattr(number, "has_nan", False)),
        has_subnormal=1,
        saturation=int(policy == "saturate"),
        rounding_mode=_ROUNDINGS[rounding],
    )


def _constant(graph: Graph, name: str, value: Any) -> str:
    """A constant of its own: tools move those of a node without asking whether another node shares them."""
    return graph.constant(np.asarray(value, np.float32), graph.new_name(name))


def _node(graph: Graph, op: str, x: Any, *constants: str, **attributes: Any) -> Symbol:
    name = name_of(graph, x, "float32")
    ndim = x.ndim if isinstance(x, Symbol) else np.ndim(x)
    made = graph.node(op, name, *constants, domain=DOMAIN, dtype="float32", **attributes)
    return Symbol(graph, made, "float32", ndim)


def _refused(what: str, why: str) -> ValueError:
    return ValueError(f"{what}: QONNX has no node with {why}; {WRITTEN}")
