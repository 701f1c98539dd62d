"""A function or a model of JAX as a file in QONNX, for tools that build hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, BinaryIO

from qcore import decode, parse
from qcore.affine.integers import AffineInteger
from qcore.exchange import qonnx
from qcore.exchange.accumulators import finished
from qcore.exchange.graph import check_target, save
from qjax._rounding.scopes import DECODE, ROUND, text_of
from qjax.export.models import made_of
from qjax.export.operations import OPERATIONS, STORED, given, known_scales, reader, taken
from qjax.export.walk import Value, Walk


def to_qonnx(
    fn: Callable[..., object],
    args: tuple[object, ...],
    file: str | PathLike[str] | BinaryIO,
    *,
    kwargs: Mapping[str, object] | None = None,
) -> None:
    """Writes a function or a model of rounded floats as QONNX: its executor has the same numbers, and hls4ml reads it.

    Roundings to fixed point and to floats become Quant and FloatQuant, also those of weights, and fake quantization
    becomes Quant. Sums have the narrowest fixed point type with all their values as annotation. A node has the law's
    results for all numbers but infinities and NaN, and zeros may change their sign. Sums of more than 24 bits are
    rounded by whoever adds in float32.

    Args:
        fn: a function of arrays, or a module of flax nnx in evaluation, with layers of formats (`quantize_model` with a
            `QConfig` of formats), calls of `qjax.quantize`, or fake quantization whose scales are powers of two.
        args: the arguments of one call, as for `to_onnx`; tools for hardware want batches of one.
        file: path of the file, which is written whole or not at all, or a file that is open for bytes.
        kwargs: the arguments that the call takes by name.

    Returns:
        Nothing; the file is written, and an existing file is replaced.

    Raises:
        ValueError: if the function computes what QONNX cannot say, or the model changes its state; the message names
            the layer.
        ImportError: if onnx is missing.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from qjax import quantize
        >>> weight = jnp.ones((3, 2))
        >>> def layer(x):
        ...     return quantize(quantize(x, "fixed(8,4)") @ quantize(weight, "fixed(6,4)"), "fixed(8,4)")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_qonnx(layer, (jnp.ones((1, 3)),), f"{folder}/model.onnx")
    """
    check_target(file)
    save(finished(made_of(fn, args, kwargs, reader(_LAWS, (*STORED, "round"))).model()), file)


def _round(walk: Walk, equation: Any, settings: Any, x: Value, *constants: Value) -> Value:
    made = qonnx.rounded(walk.graph, given(walk, x), text_of(walk.stack, ROUND), settings["mode"])
    return taken(walk, made, equation)


def _round_scaled(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value) -> Value:
    made = qonnx.round_scaled(walk.graph, given(walk, x), scale.known, settings["number"], settings["axis"])
    return taken(walk, made, equation)


def _decode(walk: Walk, equation: Any, settings: Any, codes: Value, *others: Value) -> Value | None:
    """The weights that codes stand for, with the node that rounds to their format: tools read their type there."""
    if codes.known is None or any(one.known is None for one in others):
        return OPERATIONS["decode"](walk, equation, settings, codes, *others)  # which says why it cannot be
    number = text_of(walk.stack, DECODE)
    if settings["scales"] or settings["scale"]:
        return taken(walk, qonnx.stored(walk.graph, codes.known, *known_scales(settings, others), number), equation)
    return taken(walk, qonnx.rounded(walk.graph, decode(codes.known, number), number), equation)


def _fake_quantize(walk: Walk, equation: Any, settings: Any, x: Value, scale: Value, zero: Value) -> Value:
    operands = given(walk, x), given(walk, scale), given(walk, zero)
    made = qonnx.fake_quantize(walk.graph, *operands, settings["axis"], parse(settings["form"], AffineInteger))
    return taken(walk, made, equation)


def _refused(walk: Walk, equation: Any, settings: Any, *operands: Value) -> Value:
    raise ValueError(qonnx.INTEGERS)


_LAWS = {
    **OPERATIONS,
    **dict.fromkeys(("quantize", "dequantize", "sums_of_products", "sums_of_windows", "encode"), _refused),
    "round": _round,
    "round_scaled": _round_scaled,
    "decode": _decode,
    "fake_quantize": _fake_quantize,
}
