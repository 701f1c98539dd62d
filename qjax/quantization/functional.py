"""Linear layers and convolutions in integers: exact sums of products in int32, requantized by fbgemm's formula."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams, check_qparams, requantize
from qcore.affine.quantized import check_convolution, check_linear
from qjax.quantization.array_names import Names
from qjax.quantization.parameters import Form, form_of, qparams_of
from qjax.quantization.tensor import QTensor


def linear(
    input: QTensor, weight: QTensor, bias: jax.Array | None = None, scale: Any = None, zero_point: Any = None
) -> QTensor:
    """The linear layer x W^T + b of quantized arrays; see `qcore.affine.requantize` for its rounding.

    Sums are of 32 bits, and what does not fit wraps.

    Args:
        input: of 8 bits, shape (..., in_features), with one scale.
        weight: of 8 bits, shape (out_features, in_features), with one scale, or one for each output along axis 0.
        bias: float32 of shape (out_features,).
        scale, zero_point: of the output; None means the input's.

    Returns:
        A QTensor of shape (..., out_features) and the input's integers.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes or parameters do not fit.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.float32([[1, 2, 3]]), 0.5, 3, "quint8")
        >>> w = quantize_per_tensor(jnp.float32([[1, 0, -1], [1, 1, 1]]), 0.25, 0, "qint8")
        >>> linear(x, w, jnp.float32([0, 0.5])).dequantize()
        Array([[-1.5,  6.5]], dtype=float32)
    """
    check_linear(input, weight)
    output = _output(input, weight, scale, zero_point, input.form)
    return QTensor(_linear(input, weight, bias, output), output, input.form)


def conv2d(
    input: QTensor,
    weight: QTensor,
    bias: jax.Array | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: Any = 1.0,
    zero_point: Any = 0,
    dtype: Form = "quint8",
) -> QTensor:
    """The two-dimensional convolution of quantized arrays in torch's layout; see `linear`.

    Args:
        input: of 8 bits, shape (n, in_channels, height, width), with one scale.
        weight: of 8 bits, shape (out_channels, in_channels / groups, height, width), with one scale, or one for each
            output along axis 0.
        bias, scale, zero_point: as for `linear`, which raises the same errors.
        stride, padding, dilation: one number, or two.
        groups: into how many the channels are split.
        padding_mode: "zeros": around the image lies the zero point.
        dtype: of the output.

    Returns:
        A QTensor of shape (n, out_channels, height, width).

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.ones((1, 1, 3, 3)), 0.5, 7, "quint8")
        >>> w = quantize_per_tensor(jnp.ones((1, 1, 3, 3)), 0.25, 0, "qint8")
        >>> conv2d(x, w, padding=1, scale=1.0).int_repr()[0, 0]
        Array([[4, 6, 4],
               [6, 9, 6],
               [4, 6, 4]], dtype=uint8)
    """
    stride, padding, dilation = check_convolution(input, weight, stride, padding, dilation, groups, padding_mode)
    form = form_of(dtype)
    output = _output(input, weight, scale, zero_point, form)
    return QTensor(_conv(input, weight, bias, output, form, stride, padding, dilation, groups), output, form)


@jax.jit
def _linear(input: QTensor, weight: QTensor, bias: Any, output: QParams) -> jax.Array:
    (x, x_zero), (w, w_zero) = _signed(input), _signed(weight)
    x = x[..., None, :]
    sums = _sums(x, _total(x), x_zero, w[None], w_zero)[..., 0, :]
    return requantize(sums, input.qparams.scale, weight.qparams.scale, bias, output, input.form, xp=Names)


@partial(jax.jit, static_argnums=(4, 5, 6, 7, 8))
def _conv(
    input: QTensor,
    weight: QTensor,
    bias: Any,
    output: QParams,
    form: AffineInteger,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> jax.Array:
    (x, x_zero), (w, w_zero) = _signed(input), _signed(weight)
    x = jax.lax.pad(x, x_zero.astype(jnp.int8), [(0, 0, 0), (0, 0, 0), *((place, place, 0) for place in padding)])
    x = x.transpose(0, 2, 3, 1)
    windows = partial(_windows, kernel=w.shape[2:], stride=stride, dilation=dilation, groups=groups)
    of_x = _total(windows(_total(x.reshape(*x.shape[:3], groups, -1))[..., 0]))
    w = w.transpose(0, 2, 3, 1).reshape(groups, w.shape[0] // groups, -1)
    sums = _sums(windows(x), of_x, x_zero, w, w_zero)
    sums = sums.reshape(*sums.shape[:3], -1)
    q = requantize(sums, input.qparams.scale, weight.qparams.scale, bias, output, form, xp=Names)
    return q.transpose(0, 3, 1, 2)


def _windows(
    x: jax.Array, kernel: tuple[int, ...], stride: tuple[int, int], dilation: tuple[int, int], groups: int
) -> jax.Array:
    """What each output sees, of shape (n, height, width, groups, pixels * channels), for an image with channels last.

    XLA's own convolution of int8 is 50 times slower on CPU than these copies and a product of matrices.
    """
    rows, columns = (
        [slice(i * step, i * step + size - (count - 1) * step, by) for i in range(count)]
        for size, count, step, by in zip(x.shape[1:3], kernel, dilation, stride, strict=True)
    )
    pixels = jnp.stack([x[:, row, column] for row in rows for column in columns], axis=3)
    pixels = pixels.reshape(*pixels.shape[:4], groups, -1).swapaxes(3, 4)
    return pixels.reshape(*pixels.shape[:4], -1)


def _total(x: jax.Array) -> jax.Array:
    return x.sum(-1, keepdims=True, dtype=jnp.int32)


def _sums(x: jax.Array, of_x: jax.Array, x_zero: jax.Array, w: jax.Array, w_zero: jax.Array) -> jax.Array:
    """Sums of (x - x_zero) * (w - w_zero) in int32, of shape (..., groups, outputs).

    Args:
        x: int8 array of shape (..., groups, n).
        of_x: its sums over n, int32 of shape (..., groups, 1).
        x_zero: int32 of shape ().
        w: int8 array of shape (groups, outputs, n).
        w_zero: int32 of shape (), or (groups * outputs,).
    """
    batch = x.ndim - 2
    contracted, batched = ((batch + 1,), (2,)), ((batch,), (0,))
    products = jax.lax.dot_general(x, w, (contracted, batched), preferred_element_type=jnp.int32)
    products = jnp.moveaxis(products, 0, -2)
    w_zero = w_zero.reshape(w.shape[:2] if w_zero.ndim else ())
    return products - x_zero * _total(w)[..., 0] - of_x * w_zero + w.shape[2] * x_zero * w_zero


def _signed(q: QTensor) -> tuple[jax.Array, jax.Array]:
    """Integers and zero point with a sign, for which there is hardware: unsigned ones are 128 less."""
    if q.form.storage == "int8":
        return q.values, q.qparams.zero_point
    return (q.values ^ 0x80).view(jnp.int8), q.qparams.zero_point - 128


def _output(input: QTensor, weight: QTensor, scale: Any, zero_point: Any, form: AffineInteger) -> QParams:
    input.check()
    weight.check()
    scale = input.qparams.scale if scale is None else scale
    zero_point = input.qparams.zero_point if zero_point is None else zero_point
    output = jax.tree.map(jnp.asarray, qparams_of(scale, zero_point))
    check_qparams(output, form, (), Names)
    return output
