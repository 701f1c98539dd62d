"""Integers of at most 4 bits, two in a byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams
from qjax._rounding.packing import pack, unpack
from qjax.quantization.tensor import QTensor

_BITS = 4


def packs(form: AffineInteger) -> bool:
    """True if two integers lie in a byte."""
    least = -(1 << _BITS - 1) if form.signed else 0
    return least <= form.qmin and form.qmax < least + (1 << _BITS)


def packed(values: jax.Array) -> jax.Array:
    """Integers of shape (outputs, ...) as uint8 of shape (outputs, bytes)."""
    return pack(values.reshape(len(values), -1), _BITS)


def unpacked(packed: jax.Array, form: AffineInteger, shape: tuple[int, ...]) -> jax.Array:
    """The integers of packed ones, in the weight's shape; outputs may be some of them."""
    codes, sign = unpack(packed, _BITS, prod(shape[1:])).reshape(-1, *shape[1:]), 1 << _BITS - 1
    return (codes ^ sign).astype(jnp.int8) - jnp.int8(sign) if form.signed else codes


@partial(jax.tree_util.register_dataclass, data_fields=["packed", "qparams"], meta_fields=["form", "shape"])
@dataclass(frozen=True)
class PackedTensor:
    """A quantized weight whose integers lie two in a byte: a pytree.

    Attributes:
        packed: uint8 of shape (outputs, bytes).
        qparams: one scale for all, or along axis 0.
        form: the range of the integers.
        shape: of the weight, outputs first.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = PackedTensor.of(quantize_per_tensor(jnp.float32([[-1.0, 0.5]]), 0.5, 0, AffineInteger(-8, 7)))
        >>> weight.packed, weight.unpacked().int_repr()
        (Array([[30]], dtype=uint8), Array([[-2,  1]], dtype=int8))
    """

    packed: jax.Array
    qparams: QParams
    form: AffineInteger
    shape: tuple[int, ...]

    @classmethod
    def of(cls, weight: QTensor) -> PackedTensor:
        """That of a quantized weight whose form `packs`."""
        return cls(packed(weight.values), weight.qparams, weight.form, tuple(weight.shape))

    def unpacked(self) -> QTensor:
        """The weight."""
        return QTensor(unpacked(self.packed, self.form, self.shape), self.qparams, self.form)
