"""Calls of this library's operations as nodes, by the laws in `qcore.exchange`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from qcore import parse
from qcore.affine import law
from qcore.affine.integers import AffineInteger
from qcore.exchange import fused, laws, rounding
from qcore.exchange.symbols import Symbol
from qcore.namespace import Names
from qjax._rounding.scopes import DECODE, ROUND, operation_of, text_of
from qjax.export.walk import DEFERRED, RefusedError, Translation, Value, Walk, kind_of, known_arrays, wide_dtype


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
    return x.symbol or Symbol(walk.graph, walk.name(x), x.dtype.name, x.ndim)


def taken(walk: Walk, made: Any, equation: Any) -> Value:
    """What a law returned, as the result of an equation."""
    shape, dtype = kind_of(equation)
    if not isinstance(made, Symbol):
        return walk.constant(made, dtype)
    value = Value(shape, made.dtype)
    value.name, value.graph, value.symbol = made.name, walk.graph, made
    return walk.cast(value, dtype)


def _quantize(law: Callable[..., Symbol]) -> Translation:
    def translate(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value, zero: Value) -> Value:
        parameters = given(walk, scale), given(walk, zero)
        made = law(given(walk, x), *parameters, settings["axis"], parse(settings["form"], AffineInteger))
        return taken(walk, made, equation)

    return translate


def _dequantize(apart: bool, law: Callable[..., Symbol]) -> Translation:
    """Known integers leave as they are; runtimes may fuse those that do not stand apart."""

    def translate(walk: Walk, equation: Any, settings: Any, q: Value, scale: Value, zero: Value) -> Value:
        parameters, form = (given(walk, scale), given(walk, zero)), parse(settings["form"], AffineInteger)
        if q.known is None or scale.known is None or zero.known is None:
            return taken(walk, law(given(walk, q), *parameters, settings["axis"], form), equation)
        made = laws.stored(walk.graph, q.known, *parameters, settings["axis"], form, apart)
        return taken(walk, made, equation)

    return translate


def _fake_quantize(apart: bool, fake: Callable[..., Symbol]) -> Translation:
    def translate(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value, zero: Value) -> Value:
        form, axis = parse(settings["form"], AffineInteger), settings["axis"]
        parameters = given(walk, scale), given(walk, zero)
        if x.known is None or scale.known is None or zero.known is None:
            return taken(walk, fake(given(walk, x), *parameters, axis, form), equation)
        q = law.quantize(Names, x.known, *parameters, axis, form).astype(form.storage)
        made = laws.stored(walk.graph, q, *parameters, axis, form, apart)
        return walk.cast(taken(walk, made, equation), x.dtype)

    return translate


def _requantize(walk: Walk, equation: Any, settings: Any, sums: Value, *parameters: Value) -> Value:
    """The law of sums whose channels lie along the last axis, or its fused kernel where no node needs the sums yet."""
    operands = [given(walk, one) for one in parameters]
    bias = operands.pop(2) if settings["bias"] else None
    input_scale, weight_scale, scale, zero = operands
    rest, form = (input_scale, weight_scale, bias, scale, zero), parse(settings["form"], AffineInteger)
    if sums.node is None or sums.node.op != DEFERRED:
        return taken(walk, laws.requantize(given(walk, sums), *rest, sums.ndim - 1, form), equation)
    channels_first = sums.node.attributes["channels_first"]
    axis = 1 if channels_first else sums.ndim - 1
    made = fused.requantize(sums.node.attributes["sums"](), *rest, axis, form)
    return _channels_last(walk, made, equation) if channels_first else taken(walk, made, equation)


def _sums_of_products(
    walk: Walk, equation: Any, settings: Any, x: Value, _: Value, x_zero: Value, w: Value, __: Value, w_zero: Value
) -> Value | None:
    if settings["groups"] != 1:
        return None
    operands = _rows(walk, equation, x, x_zero, w, w_zero)
    return taken(walk, laws.products(*operands, kind_of(equation)[1].name), equation)


def _fused_products(
    walk: Walk, equation: Any, settings: Any, x: Value, _: Value, x_zero: Value, w: Value, __: Value, w_zero: Value
) -> Value | None:
    if settings["groups"] != 1:
        return None
    shape, dtype = kind_of(equation)

    def sums() -> Symbol:
        return fused.Sums(laws.products, _rows(walk, equation, x, x_zero, w, w_zero), {"dtype": dtype.name})

    made: Callable[[], Value] = lambda: taken(walk, sums(), equation)  # noqa: E731
    return walk.emit(DEFERRED, shape=shape, dtype=dtype, made=made, sums=sums, channels_first=False)


def _rows(walk: Walk, equation: Any, x: Value, x_zero: Value, w: Value, w_zero: Value) -> tuple[Any, Any, Any, Any]:
    """The operands of a product: rows, a matrix, and their zero points."""
    rows = walk.reshape(x, (*kind_of(equation)[0][:-1], x.shape[-1]))
    matrix = walk.reshape(w, (w.shape[0], x.shape[-1]))
    return given(walk, rows), given(walk, x_zero), given(walk, matrix), given(walk, w_zero)


def _sums_of_windows(
    walk: Walk, equation: Any, settings: Any, x: Value, _: Value, x_zero: Value, w: Value, __: Value, w_zero: Value
) -> Value:
    operands, where = _images(walk, equation, settings, x, x_zero, w, w_zero)
    return _channels_last(walk, laws.windows(*operands, **where), equation)


def _fused_windows(
    walk: Walk, equation: Any, settings: Any, x: Value, _: Value, x_zero: Value, w: Value, __: Value, w_zero: Value
) -> Value:
    shape, dtype = kind_of(equation)

    def sums() -> Symbol:
        return fused.Sums(laws.windows, *_images(walk, equation, settings, x, x_zero, w, w_zero))

    made: Callable[[], Value] = lambda: _channels_last(walk, sums(), equation)  # noqa: E731
    return walk.emit(DEFERRED, shape=shape, dtype=dtype, made=made, sums=sums, channels_first=True)


def _images(walk: Walk, equation: Any, settings: Any, x: Value, x_zero: Value, w: Value, w_zero: Value) -> Any:
    """The operands of a convolution, with channels first, and where its windows lie."""
    images = walk.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))
    operands = given(walk, images), given(walk, x_zero), given(walk, w), given(walk, w_zero)
    where = {name: settings[name] for name in ("stride", "padding", "dilation", "groups")}
    return operands, {"dtype": kind_of(equation)[1].name, **where}


def _channels_last(walk: Walk, made: Symbol, equation: Any) -> Value:
    """What a law returned with channels first, as the result of an equation whose channels are last."""
    shape, dtype = kind_of(equation)
    value = Value((shape[0], shape[-1], *shape[1:-1]), dtype)
    value.name, value.graph, value.symbol = made.name, walk.graph, made
    return walk.transpose(value, (0, *range(2, len(shape)), 1))


def _dynamic(walk: Walk, equation: Any, settings: Any, x: Value, *weight: Value) -> Value:
    """A dynamic layer's product, whose own nodes stand in exact files."""
    values, scale, zero, bias = (*(given(walk, one) for one in weight), *([] if settings["bias"] else [None]))
    form = parse(settings["form"], AffineInteger)
    if not settings["rows"]:
        return taken(walk, fused.dynamic(given(walk, x), values, scale, zero, bias, form, "int32"), equation)
    shape, dtype = kind_of(equation)
    matrix = walk.reshape(x, (prod(shape[:-1]), x.shape[-1]))
    made = laws.dynamic(given(walk, matrix), values, scale, zero, bias, form, "int32", rows=True)
    value = Value((matrix.shape[0], shape[-1]), made.dtype)
    value.name, value.graph, value.symbol = made.name, walk.graph, made
    return walk.cast(walk.reshape(value, shape), dtype)


def _round(walk: Walk, equation: Any, settings: Any, x: Value, *constants: Value) -> Value:
    number = text_of(walk.stack, ROUND)
    return taken(walk, rounding.rounded(given(walk, x), number, settings["mode"], ""), equation)


def _round_scaled(law: Callable[..., Symbol]) -> Translation:
    def translate(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value) -> Value:
        if scale.known is None:
            raise ValueError("rounding with a computed scale has no form in ONNX; allowed are scales of a calibration")
        return taken(walk, law(given(walk, x), scale.known, settings["number"], settings["axis"]), equation)

    return translate


def _decode(apart: bool) -> Translation:
    """Known codes leave in a type of ONNX; the scales of blocks, and the array's scale, are the last operands."""

    def translate(walk: Walk, equation: Any, settings: Any, codes: Value, *others: Value) -> Value:
        if codes.known is None:
            raise ValueError("the numbers of computed codes have no form in ONNX; allowed are codes of weights")
        scales, scale = known_scales(settings, others)
        number, dtype = text_of(walk.stack, DECODE), kind_of(equation)[1].name
        return taken(walk, rounding.decoded(walk.graph, codes.known, scales, scale, number, dtype, apart), equation)

    return translate


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
    "quantize": _quantize(laws.quantize),
    "dequantize": _dequantize(True, lambda q, scale, zero, axis, form: laws.dequantize(q, scale, zero, axis)),
    "fake_quantize": _fake_quantize(True, laws.fake_quantize),
    "requantize": _requantize,
    "sums_of_products": _sums_of_products,
    "sums_of_windows": _sums_of_windows,
    "keeps_scale": _keeps_scale,
    "round": _round,
    "round_scaled": _round_scaled(rounding.scaled),
    "encode": _encode,
    "decode": _decode(True),
}
FUSED: dict[str, Translation] = {
    **OPERATIONS,
    "quantize": _quantize(fused.quantize),
    "dequantize": _dequantize(False, fused.dequantize),
    "fake_quantize": _fake_quantize(False, fused.fake_quantize),
    "sums_of_products": _fused_products,
    "sums_of_windows": _fused_windows,
    "dynamic": _dynamic,
    "round_scaled": _round_scaled(fused.scaled),
    "decode": _decode(False),
}
