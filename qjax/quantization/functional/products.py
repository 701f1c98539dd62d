"""Linear layers and convolutions in integers: exact sums of products, requantized by fbgemm's formula."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams, check_qparams, requantize
from qcore.affine.arithmetic.convolutions import pad_images
from qcore.affine.quantized import check_convolution, check_linear
from qcore.arguments import check_flag
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike
from qjax.quantization.affine import Form, form_of, qparams_of
from qjax.quantization.functional.dynamic import check_bias
from qjax.quantization.functional.images import channels_first, channels_last
from qjax.quantization.integer import sums_of_products, sums_of_windows
from qjax.quantization.tensor import QTensor

__all__ = ["conv1d", "conv2d", "conv3d", "linear"]

WIDTHS = (8, 16)  # of integers in memory


def linear(
    input: QTensor,
    weight: QTensor,
    bias: jax.Array | None = None,
    scale: float | ArrayLike | None = None,
    zero_point: int | ArrayLike | None = None,
) -> QTensor:
    """The linear layer x W^T + b of quantized arrays; see `qcore.affine.requantize` for its rounding.

    Sums are exact: int32 where all fit, else float64, which needs no x64 of the caller.

    Args:
        input: of up to 16 bits, shape (..., in_features), with one scale.
        weight: of up to 16 bits, shape (out_features, in_features), with one scale, or one for each output along axis
            0.
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
    check_linear(input, weight, WIDTHS)
    check_bias("bias", bias, weight)
    return linear_to(input, weight, bias, output_of(input, weight, scale, zero_point, input.form), input.form)


def conv2d(
    input: QTensor,
    weight: QTensor,
    bias: jax.Array | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: float | ArrayLike | None = 1.0,
    zero_point: int | ArrayLike | None = 0,
    dtype: Form = "quint8",
    channels_last: bool = False,
) -> QTensor:
    """The two-dimensional convolution of quantized arrays in torch's layout; see `linear`.

    Args:
        input: of up to 16 bits, shape (n, in_channels, height, width), with one scale.
        weight: of up to 16 bits, shape (out_channels, in_channels / groups, height, width), with one scale, or one for
            each output along axis 0.
        bias, scale, zero_point: as for `linear`.
        stride, padding, dilation: one number, or two.
        groups: into how many the channels are split.
        padding_mode: "zeros": around the image lies the zero point; "reflect", "replicate" and "circular": its own
            integers, as for `torch.nn.Conv2d`.
        dtype: of the output.
        channels_last: True for images of shape (n, height, width, channels), of input and output; the weight stays.

    Returns:
        A QTensor of shape (n, out_channels, height, width), of the integers that dtype names.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes, settings or parameters do not fit, or dtype names no integers.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.ones((1, 1, 3, 3)), 0.5, 7, "quint8")
        >>> w = quantize_per_tensor(jnp.ones((1, 1, 3, 3)), 0.25, 0, "qint8")
        >>> conv2d(x, w, padding=1, scale=1.0).int_repr()[0, 0]
        Array([[4, 6, 4],
               [6, 9, 6],
               [4, 6, 4]], dtype=uint8)
    """
    arguments = stride, padding, dilation, groups, padding_mode
    return _conv(input, weight, bias, arguments, scale, zero_point, dtype, 2, channels_last)


def conv1d(
    input: QTensor,
    weight: QTensor,
    bias: jax.Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: float | ArrayLike | None = 1.0,
    zero_point: int | ArrayLike | None = 0,
    dtype: Form = "quint8",
    channels_last: bool = False,
) -> QTensor:
    """The convolution of quantized arrays along one dimension; see `conv2d`.

    Args:
        input: of up to 16 bits, shape (n, in_channels, length), with one scale.
        weight: of up to 16 bits, shape (out_channels, in_channels / groups, length), as for `conv2d`.
        bias, stride, padding, dilation, groups, padding_mode, scale, zero_point, dtype, channels_last: as for `conv2d`.

    Returns:
        A QTensor of shape (n, out_channels, length), of the integers that dtype names.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes, settings or parameters do not fit, or dtype names no integers.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.float32([1, 2, 3]).reshape(1, 1, 3), 0.5, 0, "quint8")
        >>> w = quantize_per_tensor(jnp.ones((1, 1, 2)), 0.5, 0, "qint8")
        >>> conv1d(x, w, scale=0.5).int_repr().ravel()
        Array([ 6, 10], dtype=uint8)
    """
    arguments = stride, padding, dilation, groups, padding_mode
    return _conv(input, weight, bias, arguments, scale, zero_point, dtype, 1, channels_last)


def conv3d(
    input: QTensor,
    weight: QTensor,
    bias: jax.Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: float | ArrayLike | None = 1.0,
    zero_point: int | ArrayLike | None = 0,
    dtype: Form = "quint8",
    channels_last: bool = False,
) -> QTensor:
    """The convolution of quantized arrays along three dimensions; see `conv2d`.

    Args:
        input: of up to 16 bits, shape (n, in_channels, depth, height, width), with one scale.
        weight: of up to 16 bits, shape (out_channels, in_channels / groups, depth, height, width), as for `conv2d`.
        bias, stride, padding, dilation, groups, padding_mode, scale, zero_point, dtype: as for `conv2d`.

    Returns:
        A QTensor of shape (n, out_channels, depth, height, width), of the integers that dtype names.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes, settings or parameters do not fit, or dtype names no integers.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.float32([1, 2, 3]).reshape(1, 1, 1, 1, 3), 0.5, 0, "quint8")
        >>> w = quantize_per_tensor(jnp.ones((1, 1, 1, 1, 2)), 0.5, 0, "qint8")
        >>> conv3d(x, w, scale=0.5).int_repr().ravel()
        Array([ 6, 10], dtype=uint8)
    """
    arguments = stride, padding, dilation, groups, padding_mode
    return _conv(input, weight, bias, arguments, scale, zero_point, dtype, 3, channels_last)


def linear_to(input: QTensor, weight: QTensor, bias: jax.Array | None, output: QParams, form: AffineInteger) -> QTensor:
    """`linear` with checked operands, and any integers as its result."""
    return QTensor(_linear(input, weight, bias, output, form), output, form)


def conv_to(
    input: QTensor, weight: QTensor, bias: jax.Array | None, settings: Any, output: QParams, form: AffineInteger
) -> QTensor:
    """A convolution of any dimension, with checked operands, of images with channels last.

    Its settings are those of `sums_of_windows`: stride, pairs of paddings, dilation and groups.
    """
    return QTensor(_windows(input, weight, bias, output, form, settings), output, form)


def _conv(
    input: Any,
    weight: Any,
    bias: Any,
    arguments: Any,
    scale: Any,
    zero_point: Any,
    dtype: Form,
    dimensions: int,
    last: bool,
) -> QTensor:
    """A convolution of images with channels first, or last."""
    check_flag("channels_last", last)
    first = channels_first(input) if last and isinstance(input, QTensor) else input
    stride, padding, dilation = check_convolution(first, weight, *arguments, dimensions=dimensions, widths=WIDTHS)
    check_bias("bias", bias, weight)
    output = output_of(input, weight, scale, zero_point, form := form_of(dtype))
    images, pairs = input if last else channels_last(input), tuple((place, place) for place in padding)
    if arguments[4] != "zeros":
        images, pairs = pad_images(images, pairs, arguments[4], first=1), ((0, 0),) * dimensions
    settings = stride, pairs, dilation, arguments[3]
    result = conv_to(images, weight, bias, settings, output, form)
    return result if last else channels_first(result)


@partial(jax.jit, static_argnums=4)
def _linear(input: QTensor, weight: QTensor, bias: Any, output: QParams, form: AffineInteger) -> jax.Array:
    grouped = QTensor(input.values[..., None, :], input.qparams, input.form)
    return _requantized(sums_of_products(grouped, weight), input, weight, bias, output, form)


@partial(jax.jit, static_argnums=(4, 5))
def _windows(
    input: QTensor, weight: QTensor, bias: Any, output: QParams, form: AffineInteger, settings: Any
) -> jax.Array:
    return _requantized(sums_of_windows(input, weight, *settings), input, weight, bias, output, form)


def _requantized(
    sums: jax.Array, input: QTensor, weight: QTensor, bias: Any, output: QParams, form: AffineInteger
) -> jax.Array:
    return requantize(sums, input.qparams.scale, weight.qparams.scale, bias, output, form, xp=Names)


def output_of(input: QTensor, weight: QTensor, scale: Any, zero_point: Any, form: AffineInteger) -> QParams:
    """The result's parameters, checked as the operands are; None means the input's."""
    input.check()
    weight.check()
    scale = input.qparams.scale if scale is None else scale
    zero_point = input.qparams.zero_point if zero_point is None else zero_point
    output = jax.tree.map(jnp.asarray, qparams_of(scale, zero_point))
    check_qparams(output, form, (), Names)
    return output
