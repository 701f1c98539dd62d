"""Quantized weights and parameters of results, from the arrays of a `state_dict`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qcore.arguments import quoted
from qjax.nnx.workflow.carrying.entries import Entries
from qjax.quantization import QTensor
from qjax.quantization.integer.packed import unpacked

_INT4 = AffineInteger.of_width(4)
_BY_DTYPE = {"int8": INT8, "uint8": UINT8, "int16": AffineInteger.of_width(16), "uint16": AffineInteger(0, 65535)}


def weight_from(shape: tuple[int, ...], entries: Entries, form: AffineInteger | None, channels: int = 0) -> QTensor:
    """The weight in integers that has a shape in torch; without a form, of all integers of its dtype, or of 4 bits.

    `channels` is the dimension of outputs in torch: 1 of transposed convolutions.

    Raises:
        ValueError: if an array is missing, or has another shape or dtype.
    """
    scale, zero_point = entries.take("scale"), entries.take("zero_point")
    qparams = QParams(jnp.asarray(scale), jnp.asarray(zero_point), channels if scale.ndim else None)
    if "packed" in entries:
        form = _INT4 if form is None else form
        values = unpacked(jnp.asarray(entries.take("packed")), form, shape)
    else:
        values = jnp.asarray(entries.take("int_repr"))
        allowed = list(_BY_DTYPE) if form is None else [form.storage]
        if values.dtype.name not in allowed:
            raise ValueError(f"{entries.prefix}int_repr has dtype {values.dtype}; allowed is {' or '.join(allowed)}")
        form = _BY_DTYPE[values.dtype.name] if form is None else form
    if values.shape != shape:
        raise ValueError(
            f"{quoted(entries.prefix[:-1])} of tensors has shape {values.shape}; allowed is {shape}, as the model's"
        )
    weight = QTensor(values, qparams, form)
    try:
        weight.check()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{quoted(entries.prefix[:-1])} of tensors: {error}") from error
    check_range(values, form, entries.prefix[:-1])
    return weight


def check_range(values: jax.Array, form: AffineInteger, name: str) -> None:
    """Raises ValueError if the integers of a weight are out of range."""
    if ((values < form.qmin) | (values > form.qmax)).any():
        raise ValueError(f"{quoted(name)} of tensors has integers outside of {form}; allowed are none")


def parameters_from(entries: Entries) -> QParams:
    """The parameters of a result."""
    scale, zero_point = (entries.take(name, size=1).reshape(()) for name in ("scale", "zero_point"))
    if zero_point.dtype.kind not in "iu":
        raise ValueError(f"{entries.prefix}zero_point is {zero_point.dtype}; allowed are integers")
    return QParams(jnp.asarray(scale, jnp.float32), jnp.asarray(zero_point, jnp.int32))
