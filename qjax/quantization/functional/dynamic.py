"""Products of floats with quantized weights, whose inputs are quantized when they are there; see `recurrent`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import UINT8, AffineInteger, QParams
from qcore.affine.arithmetic import recurrent
from qcore.affine.parameters import check_parameter
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike, as_array
from qjax.quantization.integer.products import sums_of_products
from qjax.quantization.rounding import FormatRounding
from qjax.quantization.tensor import QTensor

ACTIVATIONS = UINT8.reduced()
_LARGEST = 65504.0  # of float16


@partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["rounding"])
@dataclass(frozen=True)
class RoundedWeight:
    """The numbers of a weight in a format, and what rounds the input of each product with it. A pytree.

    Attributes:
        numbers: float32 of shape (outputs, features).
        rounding: a format, or none, for what goes in.

    Example:
        >>> from qjax import quantizer
        >>> weight = RoundedWeight(jnp.float32([[1, 2]]), FormatRounding(quantizer("e5m2", None, "nearest", "nearest")))
        >>> dynamic_linear(jnp.float32([1.2, 1]), weight)
        Array([3.25], dtype=float32)
    """

    numbers: jax.Array
    rounding: FormatRounding

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers' shape."""
        return self.numbers.shape

    @property
    def ndim(self) -> int:
        """How many dimensions the numbers have."""
        return self.numbers.ndim


Weight = QTensor | RoundedWeight | jax.Array  # the last of float16


def dynamic_linear(x: ArrayLike, weight: Weight, bias: jax.Array | None = None) -> jax.Array:
    """x @ weight.T + bias in float32, of a quantized weight and x quantized by its own range, or of a float16 weight.

    With a quantized weight it is float32(sums) * (scale of x * scale of weight) + bias, where sums are exact. The range
    is that of all of x; under `jax.vmap` of each example. A NaN or an infinity in x makes all results NaN. With a
    weight in a format it is the float32 product of x, rounded to another format, and the weight's numbers.

    Args:
        x: floats of shape (..., features).
        weight: of up to 16 bits, shape (outputs, features), with one scale or one for each output; in a format; or
            float16.
        bias: float32 of shape (outputs,), or None.

    Returns:
        An array of shape (..., outputs), rounded from float32 to x's dtype.

    Raises:
        TypeError: if x is no array of floats, the weight of none of these types, or bias no float32 array.
        ValueError: if shapes do not fit.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.float32([[1, 0], [0.5, -1]]), 0.01, 0, "qint8")
        >>> dynamic_linear(jnp.float32([1, 0]), weight)
        Array([1. , 0.5], dtype=float32)
    """
    return product(x, weight, bias).astype(x.dtype)


def product(x: Any, weight: Weight, bias: jax.Array | None) -> jax.Array:
    """`dynamic_linear` in float32, whatever x's dtype."""
    if isinstance(x, QTensor):
        raise TypeError("x is a QTensor; allowed is an array of floats: insert a DeQuantStub before this layer")
    x = as_array(x)
    check_weight("weight", weight)
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape}; allowed is (..., {weight.shape[1]})")
    check_bias("bias", bias, weight)
    return _product(Names.astype(x, "float32"), weight, bias)


def halves(weight: ArrayLike) -> jax.Array:
    """A weight in float16, whose largest number is what others become."""
    return jnp.clip(jnp.asarray(weight), -_LARGEST, _LARGEST).astype(jnp.float16)


def check_weight(name: str, weight: Any) -> None:
    """Raises unless a weight has two dimensions, and integers of up to 16 bits or float16 numbers."""
    if isinstance(weight, QTensor):
        if weight.form.storage == "int32" or weight.qparams.axis not in (None, 0):
            raise ValueError(
                f"{name} has integers of {weight.form.storage} and axis={weight.qparams.axis}; allowed are up to 16 "
                "bits, and one scale or axis 0"
            )
    elif not isinstance(weight, RoundedWeight) and getattr(weight, "dtype", None) != jnp.float16:
        found = getattr(weight, "dtype", type(weight).__name__)
        raise TypeError(f"{name} is {found}; allowed are a QTensor, a RoundedWeight and float16")
    if weight.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(weight.shape)}; allowed is (outputs, features)")


def check_bias(name: str, bias: Any, weight: Weight) -> None:
    if bias is not None:
        check_parameter(name, bias, [weight.shape[:1]], Names)


@jax.jit
def _product(x: jax.Array, weight: Weight, bias: Any) -> jax.Array:
    if isinstance(weight, RoundedWeight):
        x, weight = weight.rounding.function(x), weight.numbers
    if not isinstance(weight, QTensor):
        y = x @ weight.astype(jnp.float32).T
        return y if bias is None else y + bias
    if x.size == 0:
        return jnp.zeros((*x.shape[:-1], weight.shape[0]))
    form: AffineInteger = ACTIVATIONS
    q, qparams = recurrent.quantize_dynamic(Names, jax.lax.stop_gradient(x), form)
    whole = QParams(jnp.ones_like(qparams.scale), qparams.zero_point)  # a scale may be NaN
    grouped = QTensor(q.astype(form.storage)[..., None, :], whole, form)
    sums = sums_of_products(grouped, weight)
    return recurrent.dynamic_output(Names, sums, qparams.scale, weight.qparams.scale, bias)
