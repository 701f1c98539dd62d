"""Calls of this library's operations as nodes, by the laws in `qcore.exchange`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qcore import parse
from qcore.affine import law
from qcore.affine.integers import AffineInteger
from qcore.exchange import laws, rounding
from qcore.exchange.symbols import Symbol
from qcore.namespace import Names
from qjax._rounding.scopes import DECODE, ROUND, operation_of, text_of
from qjax.export.walk import RefusedError, Translation, Value, Walk, kind_of, known_arrays, wide_dtype


def reader(laws: Mapping[str, Translation], stored: Sequence[str]) -> Translation:
    """The translation of the calls of operations.

    Args:
        laws: by the operation's name a function(walk, equation, settings, *values) that returns the result's `Value`.
        stored: the operations whose law is written also where all operands are known.

    Returns:
        A function(walk, equation, values) that returns the results, or None for equations that are not such calls.
    """

    def read(walk: Walk, equation: Any, values: Sequence[Value]) -> list[Value] | None:
        found = operation_of(equation)
        if found is None or found["name"] not in laws:
            return None
        arrays = known_arrays(values)
        if arrays is not None and found["name"] not in stored:
            return walk.folded(equation, arrays)
        try:
            made = laws[found["name"]](walk, equation, found, *values)
        except RefusedError:  # of an operand
            raise
        except ValueError as error:  # of a law, which does not know the layer
            what, _, allowed = str(error).partition("; ")
            raise walk.error(what, allowed) from error
        return made if made is None else [made]

    return read


def given(walk: Walk, x: Value) -> Any:
    """A value as laws take it: an array of NumPy if it is known, else a symbol."""
    if x.known is not None:
        return x.known
    return Symbol(walk.graph, walk.name(x), x.dtype.name, x.ndim)


def taken(walk: Walk, made: Any, equation: Any) -> Value:
    """What a law returned, as the result of an equation."""
    shape, dtype = kind_of(equation)
    if not isinstance(made, Symbol):
        return walk.constant(made, dtype)
    value = Value(shape, made.dtype)
    value.name, value.graph = made.name, walk.graph
    return walk.cast(value, dtype)


def _quantize(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value, zero: Value) -> Value:
    parameters = given(walk, scale), given(walk, zero)
    made = laws.quantize(given(walk, x), *parameters, settings["axis"], parse(settings["form"], AffineInteger))
    return taken(walk, made, equation)


def _dequantize(walk: Walk, equation: Any, settings: Any, q: Value, scale: Value, zero: Value) -> Value:
    parameters = given(walk, scale), given(walk, zero)
    if q.known is None or scale.known is None or zero.known is None:
        return taken(walk, laws.dequantize(given(walk, q), *parameters, settings["axis"]), equation)
    return _stored(walk, equation, q.known, *parameters, settings)


def _stored(walk: Walk, equation: Any, q: np.ndarray, scale: Any, zero: Any, settings: Any) -> Value:
    """Known integers that leave as they are, before DequantizeLinear."""
    made = laws.stored(walk.graph, q, scale, zero, settings["axis"], parse(settings["form"], AffineInteger))
    return taken(walk, made, equation)


def _fake_quantize(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value, zero: Value) -> Value:
    form, axis = parse(settings["form"], AffineInteger), settings["axis"]
    parameters = given(walk, scale), given(walk, zero)
    if x.known is None or scale.known is None or zero.known is None:
        return taken(walk, laws.fake_quantize(given(walk, x), *parameters, axis, form), equation)
    q = law.quantize(Names, x.known, *parameters, axis, form).astype(form.storage)
    return walk.cast(_stored(walk, equation, q, *parameters, settings), x.dtype)


def _sums_of_products(
    walk: Walk, equation: Any, settings: Any, x: Value, _: Value, x_zero: Value, w: Value, __: Value, w_zero: Value
) -> Value | None:
    if settings["groups"] != 1:
        return None
    shape, dtype = kind_of(equation)
    rows = walk.reshape(x, (*shape[:-1], x.shape[-1]))
    matrix = walk.reshape(w, (w.shape[0], x.shape[-1]))
    operands = given(walk, rows), given(walk, x_zero), given(walk, matrix), given(walk, w_zero)
    return taken(walk, laws.products(*operands, dtype.name), equation)


def _sums_of_windows(
    walk: Walk, equation: Any, settings: Any, x: Value, _: Value, x_zero: Value, w: Value, __: Value, w_zero: Value
) -> Value:
    shape, dtype = kind_of(equation)
    last, spatial = x.ndim - 1, range(1, x.ndim - 1)
    images = walk.transpose(x, (0, last, *spatial))
    operands = given(walk, images), given(walk, x_zero), given(walk, w), given(walk, w_zero)
    where = [settings[name] for name in ("stride", "padding", "dilation", "groups")]
    made = laws.windows(*operands, dtype.name, *where)
    value = Value((shape[0], shape[-1], *shape[1:-1]), dtype)
    value.name, value.graph = made.name, walk.graph
    return walk.transpose(value, (0, *range(2, x.ndim), 1))


def _round(walk: Walk, equation: Any, settings: Any, x: Value, *constants: Value) -> Value:
    number = text_of(walk.stack, ROUND)
    return taken(walk, rounding.rounded(given(walk, x), number, settings["mode"], ""), equation)


def _round_scaled(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value) -> Value:
    if scale.known is None:
        raise ValueError("rounding with a computed scale has no form in ONNX; allowed are scales of a calibration")
    made = rounding.scaled(given(walk, x), scale.known, settings["number"], settings["axis"])
    return taken(walk, made, equation)


def _decode(walk: Walk, equation: Any, settings: Any, codes: Value, *others: Value) -> Value:
    """Known codes leave in a type of ONNX; the scales of blocks, and the array's scale, are the last operands."""
    if codes.known is None:
        raise ValueError("the numbers of computed codes have no form in ONNX; allowed are codes of weights")
    scales, scale = known_scales(settings, others)
    number, dtype = text_of(walk.stack, DECODE), kind_of(equation)[1].name
    return taken(walk, rounding.decoded(walk.graph, codes.known, scales, scale, number, dtype), equation)


def known_scales(settings: Any, operands: Sequence[Value]) -> tuple[Any, Any]:
    """The scales of blocks and the array's scale, which are the last operands of a decoding; None for what it lacks."""
    last = [one.known for one in operands]
    scale = last.pop() if settings["scale"] else None
    return (last.pop() if settings["scales"] else None), scale


def _encode(walk: Walk, equation: Any, settings: Any, *operands: Value) -> Value:
    raise ValueError("the codes of computed numbers have no form in ONNX; allowed is qjax.quantize")


def _keeps_scale(walk: Walk, equation: Any, settings: Any, x: Value) -> Value | None:
    """max(x, 0) that keeps -0.0; other functions are computed equation by equation."""
    if settings["function"] != "_relu":
        return None
    wide = walk.cast(x, wide_dtype(x.dtype))
    return walk.cast(walk.elementwise("Relu", wide), x.dtype)


STORED = "dequantize", "fake_quantize", "decode"  # known operands of these leave in a narrow type
OPERATIONS: dict[str, Translation] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "fake_quantize": _fake_quantize,
    "sums_of_products": _sums_of_products,
    "sums_of_windows": _sums_of_windows,
    "keeps_scale": _keeps_scale,
    "round": _round,
    "round_scaled": _round_scaled,
    "encode": _encode,
    "decode": _decode,
}
