"""QPyTorch's quantization functions as pure functions of JAX arrays, with its argument names, order and defaults."""

from __future__ import annotations

from functools import lru_cache

import jax

from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Number
from qcore.law.rounding import RoundingLike
from qcore.lazy import public_names
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.keys import Key
from qjax.quant.quantizer import quantizer

__all__ = ["block_quantize", "fixed_point_quantize", "float_quantize", "quantizer"]
__dir__ = public_names(__name__)


def fixed_point_quantize(
    x: ArrayLike,
    wl: int,
    fl: int,
    clamp: bool = True,
    symmetric: bool = False,
    rounding: RoundingLike = "stochastic",
    key: Key = None,
) -> jax.Array:
    """Rounds an array to fixed point.

    Args:
        x, rounding, key: as for `quantize`.
        wl, fl: the length of words and of their fraction, in bits.
        clamp: True clamps to the range of words; False keeps numbers beyond it.
        symmetric: True leaves out the least number, so that the range is symmetric.

    Returns:
        An array of x's shape and dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> fixed_point_quantize(jnp.float32([0.3, -0.3, 9.0]), wl=4, fl=2, rounding="nearest")
        Array([ 0.25, -0.25,  1.75], dtype=float32)
    """
    return quantize(x, _number(FixedPoint, wl, fl, clamp, symmetric), rounding, key=key)


def block_quantize(
    x: ArrayLike, wl: int, dim: int = -1, rounding: RoundingLike = "stochastic", key: Key = None
) -> jax.Array:
    """Rounds an array to block floating point.

    Args:
        x, rounding, key: as for `quantize`.
        wl: the length of words, in bits.
        dim: the dimension along which each index has its own exponent; -1 for one exponent for the array.

    Returns:
        An array of x's shape and dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> block_quantize(jnp.float32([1.0, 0.3, -0.02]), wl=4, rounding="nearest")
        Array([ 1.  ,  0.25, -0.  ], dtype=float32)
    """
    return quantize(x, _number(BlockFloatingPoint, wl, dim), rounding, key=key)


def float_quantize(
    x: ArrayLike, exp: int, man: int, rounding: RoundingLike = "stochastic", key: Key = None
) -> jax.Array:
    """Rounds an array to floating point; see `FloatingPoint`.

    Args:
        x, rounding, key: as for `quantize`.
        exp, man: the numbers of bits of exponent and mantissa.

    Returns:
        An array of x's shape and dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> float_quantize(jnp.float32([0.1241, 0.3602]), exp=5, man=2, rounding="nearest")
        Array([0.125, 0.375], dtype=float32)
    """
    return quantize(x, _number(FloatingPoint, exp, man), rounding, key=key)


def _number(make: type[Number], *arguments: object) -> Number:
    try:
        return _cached(make, *arguments)
    except TypeError:  # an argument without a hash is a wrong one: `make` names it
        return make(*arguments)


@lru_cache(maxsize=1024, typed=True)
def _cached(make: type[Number], *arguments: object) -> Number:
    return make(*arguments)
