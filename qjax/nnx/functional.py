"""Functions of arrays and of quantized arrays, so that a model's source works before and after conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import functional as affine
from qcore.arguments import check_choice, check_int, check_sizes, check_type, quoted
from qcore.lazy import public_names
from qjax._rounding.inputs import ArrayLike, as_numbers
from qjax._rounding.scopes import operation
from qjax.quantization import QTensor, functional

__all__ = ["avg_pool", "hard_tanh", "leaky_relu", "max_pool", "relu", "relu6", "softmax"]
__dir__ = public_names(__name__)

Padding = str | Sequence[tuple[int, int]]


@partial(jax.jit, static_argnums=(0, 2))
def keeps_scale(function: Callable[..., Any], x: jax.Array, settings: tuple[Any, ...] = ()) -> jax.Array:
    """function(x, *settings) as one equation of a jaxpr. Its name tells `quantize_model` that it takes integers."""
    with operation("keeps_scale", x, function=function.__name__):
        return function(x, *settings)


@overload
def relu(x: QTensor) -> QTensor: ...
@overload
def relu(x: jax.typing.ArrayLike) -> jax.Array: ...
def relu(x: jax.typing.ArrayLike | QTensor) -> jax.Array | QTensor:
    """max(x, 0) of an array or of a QTensor; -0.0 and subnormal numbers stay, as in PyTorch.

    Args:
        x: array or QTensor.

    Returns:
        An array of x's shape and dtype, int32 for bools; for a QTensor, a QTensor of its shape, form and parameters.

    Raises:
        TypeError, ValueError: if x is neither a QTensor nor a value that `jnp.asarray` takes.

    Example:
        >>> relu(jnp.float32([-1, 2, -0.0]))
        Array([ 0.,  2., -0.], dtype=float32)
    """
    if isinstance(x, QTensor):
        return x.relu()
    x = as_numbers(x, "x")
    return keeps_scale(_relu, x) if jnp.issubdtype(x.dtype, jnp.floating) else jax.nn.relu(x)


def _relu(x: jax.Array) -> jax.Array:
    lanes = jax.lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")  # XLA flushes subnormals, and adds 0 to -0.0
    magnitudes = lanes & jnp.iinfo(lanes.dtype).max
    infinity = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, x.dtype), lanes.dtype)
    passes = (lanes > 0) | (magnitudes > infinity)
    return jnp.where(magnitudes == 0, jax.lax.stop_gradient(x), jnp.where(passes, x, jnp.zeros_like(x)))


@overload
def relu6(x: QTensor) -> QTensor: ...
@overload
def relu6(x: jax.typing.ArrayLike) -> jax.Array: ...
def relu6(x: jax.typing.ArrayLike | QTensor) -> jax.Array | QTensor:
    """min(max(x, 0), 6) of an array or of a QTensor, for which 6 is quantized.

    Args:
        x: array or QTensor.

    Returns:
        An array of x's shape and dtype, float32 for ints; for a QTensor, a QTensor of its shape, form and parameters.

    Raises:
        TypeError, ValueError: if x is neither a QTensor nor a value that `jnp.asarray` takes, or is a QTensor with a
            scale for each channel.

    Example:
        >>> relu6(jnp.float32([-1, 2, 8]))
        Array([0., 2., 6.], dtype=float32)
    """
    return affine.clamp(x, 0, 6) if isinstance(x, QTensor) else keeps_scale(jax.nn.relu6, as_numbers(x, "x"))


@overload
def hard_tanh(x: QTensor) -> QTensor: ...
@overload
def hard_tanh(x: jax.typing.ArrayLike) -> jax.Array: ...
def hard_tanh(x: jax.typing.ArrayLike | QTensor) -> jax.Array | QTensor:
    """min(max(x, -1), 1) of an array or of a QTensor, for which the bounds are quantized.

    Args:
        x: array or QTensor.

    Returns:
        An array of x's shape and dtype, int32 for bools; for a QTensor, a QTensor of its shape, form and parameters.

    Raises:
        TypeError, ValueError: if x is neither a QTensor nor a value that `jnp.asarray` takes, or is a QTensor with a
            scale for each channel.

    Example:
        >>> hard_tanh(jnp.float32([-3, 0.5, 2]))
        Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    return affine.clamp(x, -1, 1) if isinstance(x, QTensor) else keeps_scale(jax.nn.hard_tanh, as_numbers(x, "x"))


@overload
def leaky_relu(x: QTensor, negative_slope: float = 0.01) -> QTensor: ...
@overload
def leaky_relu(x: jax.typing.ArrayLike, negative_slope: float = 0.01) -> jax.Array: ...
def leaky_relu(x: jax.typing.ArrayLike | QTensor, negative_slope: float = 0.01) -> jax.Array | QTensor:
    """x where it is above 0, else x * negative_slope, of an array or of a QTensor, whose parameters stay.

    Args:
        x: array or QTensor.
        negative_slope: a finite number.

    Returns:
        An array of x's shape and dtype; for a QTensor, a QTensor of its shape, form and parameters.

    Raises:
        TypeError: if x is neither a QTensor nor an array of numbers.
        ValueError: if x is a QTensor with a scale for each channel.

    Example:
        >>> leaky_relu(jnp.float32([-2, 2]), 0.5)
        Array([-1.,  2.], dtype=float32)
    """
    if isinstance(x, QTensor):
        return affine.leaky_relu(x, x.qparams, slope=negative_slope)
    return jax.nn.leaky_relu(as_numbers(x, "x"), as_numbers(negative_slope, "negative_slope"))


@overload
def softmax(x: QTensor, axis: int = -1) -> QTensor: ...
@overload
def softmax(x: jax.typing.ArrayLike, axis: int = -1) -> jax.Array: ...
def softmax(x: jax.typing.ArrayLike | QTensor, axis: int = -1) -> jax.Array | QTensor:
    """The softmax of an array, or of a QTensor, whose result has the parameters of numbers from 0 to 1.

    Args:
        x: array or QTensor.
        axis: the axis along which results add up to 1.

    Returns:
        An array of x's shape and dtype; for a QTensor, a QTensor of its shape and form.

    Raises:
        TypeError: if x is neither a QTensor nor an array of numbers.
        ValueError: if there is no such axis, or x is a QTensor with a scale for each channel.

    Example:
        >>> softmax(jnp.float32([1, 1]))
        Array([0.5, 0.5], dtype=float32)
    """
    if isinstance(x, QTensor):
        return affine.softmax(x, axis)
    for one in axis if isinstance(axis, tuple) else (axis,):  # JAX takes several axes
        check_int("axis", one)
    return jax.nn.softmax(as_numbers(x, "x"), axis)


@overload
def max_pool(
    inputs: QTensor, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> QTensor: ...
@overload
def max_pool(
    inputs: ArrayLike, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> jax.Array: ...
def max_pool(
    inputs: ArrayLike | QTensor,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array | QTensor:
    """The greatest number of each window, of an array or of a QTensor.

    Args:
        inputs: of shape (batch, *sizes, features), with one to three sizes if it is a QTensor.
        window_shape, strides, padding: as for `nnx.max_pool`; strides None is 1.

    Returns:
        An array of shape (batch, *windows, features) and inputs' dtype; for a QTensor, a QTensor with its form and
            parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.float32([[[1], [3], [2]]]), 0.5, 0, "quint8")
        >>> max_pool(x, (2,)).dequantize().ravel()
        Array([3., 3.], dtype=float32)
    """
    settings = _checked(inputs, window_shape, strides, padding)
    if not isinstance(inputs, QTensor):
        return keeps_scale(nnx.max_pool, jnp.asarray(inputs), settings)
    return functional.max_pool(*_padded(inputs, *settings, inputs.form.qmin), channels_last=True)


@overload
def avg_pool(
    inputs: QTensor, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> QTensor: ...
@overload
def avg_pool(
    inputs: ArrayLike, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> jax.Array: ...
def avg_pool(
    inputs: ArrayLike | QTensor,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array | QTensor:
    """The mean of each window, of an array or of a QTensor; padding counts as 0.

    Args:
        inputs, window_shape, strides, padding: as for `max_pool`.

    Returns:
        An array of shape (batch, *windows, features) and inputs' dtype, float32 for ints; for a QTensor, a
            QTensor with its form and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> avg_pool(jnp.float32([[[1], [3], [2]]]), (2,)).ravel()
        Array([2. , 2.5], dtype=float32)
    """
    settings = _checked(inputs, window_shape, strides, padding)
    if not isinstance(inputs, QTensor):
        if not jnp.issubdtype(inputs.dtype, jnp.number):
            raise TypeError(f"inputs is an array of {inputs.dtype}; allowed is an array of numbers")
        return nnx.avg_pool(jnp.asarray(inputs), *settings)
    return functional.avg_pool(*_padded(inputs, *settings, inputs.qparams.zero_point), channels_last=True)


def _checked(inputs: Any, window: Any, strides: Any, padding: Any) -> tuple[Any, Any, Any]:
    """The window, its strides and the padding; raises unless they fit the inputs."""
    check_type("window_shape", window, (tuple, list), "a tuple of ints")
    if not isinstance(inputs, (QTensor, ArrayLike)):
        raise TypeError(f"inputs is a {type(inputs).__name__}; allowed are a QTensor, a jax.Array and a NumPy array")
    dims, shape = len(window), np.shape(inputs)
    window = check_sizes("window_shape", window, 1, dims)
    batches = len(shape) - dims - 1
    if batches < 0 or (batches != 1 and isinstance(inputs, QTensor)):
        raise ValueError(f"inputs has shape {tuple(shape)}; allowed is (batch, *sizes, features), {dims} sizes")
    if isinstance(padding, str):
        check_choice("padding", padding.upper(), ("VALID", "SAME", "SAME_LOWER"))
    elif np.shape(padding) != (dims, 2):
        raise ValueError(f"padding={quoted(padding)}; allowed are VALID, SAME, SAME_LOWER and {dims} pairs of ints")
    else:
        padding = tuple((index(low), index(high)) for low, high in padding)
    return window, check_sizes("strides", 1 if strides is None else strides, 1, dims), padding


def _padded(q: QTensor, window: tuple[int, ...], steps: tuple[int, ...], padding: Any, value: Any) -> tuple[Any, ...]:
    """The padded array, and the arguments of a pool without padding."""
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(q.shape[1:-1], window, steps, padding)
    widths = [(0, 0, 0), *((int(low), int(high), 0) for low, high in padding), (0, 0, 0)]
    values = jax.lax.pad(q.values, jnp.asarray(value).astype(q.values.dtype), widths)
    return QTensor(values, q.qparams, q.form), len(window), window, steps
