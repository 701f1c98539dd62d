"""Linear layers and convolutions in integers: exact sums of products, requantized by fbgemm's formula."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams, check_qparams, requantize
from qcore.affine.functional.convolutions import pad_images
from qcore.affine.quantized import check_convolution, check_linear
from qcore.arguments import check_flag
from qcore.names import in_dimensions
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.scopes import operation
from qjax.quantization.affine import Form, form_of, qparams_of
from qjax.quantization.functional.dynamic import check_bias
from qjax.quantization.functional.images import channels_first
from qjax.quantization.functional.images import channels_last as with_last
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


def _conv(dimensions: int):  # its result has the type of the function, which checkers infer
    def conv(
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
        """The convolution of quantized arrays in torch's layout (`torch.nn.functional.{name}`); see `linear`.

        Args:
            input: of up to 16 bits, shape (n, in_channels, {sizes}), with one scale.
            weight: of up to 16 bits, shape (out_channels, in_channels / groups, {sizes}), with one scale, or one for
                each output along axis 0.
            bias, scale, zero_point: as for `linear`.
            stride, padding, dilation: one number, or one for each dimension.
            groups: into how many the channels are split.
            padding_mode: "zeros": around the image lies the zero point; "reflect", "replicate" and "circular": its own
                integers, as for `torch.nn.Conv2d`.
            dtype: of the output.
            channels_last: True for images of shape (n, {sizes}, channels), of input and output; the weight stays.

        Returns:
            A QTensor of shape (n, out_channels, {sizes}), of the integers that dtype names.

        Raises:
            ValueError: if shapes, settings or parameters do not fit, or dtype names no integers.

        Example:
            >>> from qjax.quantization import quantize_per_tensor
            >>> x = jnp.float32([1, 2, 3]).reshape(1, 1, {ones}3)
            >>> x = quantize_per_tensor(x, 0.5, 0, "quint8")
            >>> w = quantize_per_tensor(jnp.ones((1, 1, {ones}2)), 0.5, 0, "qint8")
            >>> {name}(x, w, scale=0.5).int_repr().ravel()
            Array([ 6, 10], dtype=uint8)
        """
        arguments = stride, padding, dilation, groups, padding_mode
        check_flag("channels_last", channels_last)
        first = channels_first(input) if channels_last and isinstance(input, QTensor) else input
        steps, margins, gaps = check_convolution(first, weight, *arguments, dimensions=dimensions, widths=WIDTHS)
        check_bias("bias", bias, weight)
        output = output_of(input, weight, scale, zero_point, form := form_of(dtype))
        images, pairs = input if channels_last else with_last(input), tuple((place, place) for place in margins)
        if padding_mode != "zeros":
            images, pairs = pad_images(images, pairs, padding_mode, first=1), ((0, 0),) * dimensions
        result = conv_to(images, weight, bias, (steps, pairs, gaps, groups), output, form)
        return result if channels_last else channels_first(result)

    return in_dimensions(dimensions, conv)


conv1d = _conv(1)
conv2d = _conv(2)
conv3d = _conv(3)


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
    return _rounded(form, sums, input.qparams.scale, weight.qparams.scale, bias, output)


@partial(jax.jit, static_argnums=0)
def _rounded(
    form: AffineInteger, sums: jax.Array, input_scale: Any, weight_scale: Any, bias: Any, output: QParams
) -> jax.Array:
    arrays = sums, input_scale, weight_scale, bias, output.scale, output.zero_point
    with operation("requantize", *arrays, form=form.text, bias=bias is not None):
        return requantize(sums, input_scale, weight_scale, bias, output, form, xp=Names)


def output_of(input: QTensor, weight: QTensor, scale: Any, zero_point: Any, form: AffineInteger) -> QParams:
    """The result's parameters, checked as the operands are; None means the input's."""
    input.check()
    weight.check()
    scale = input.qparams.scale if scale is None else scale
    zero_point = input.qparams.zero_point if zero_point is None else zero_point
    output = jax.tree.map(jnp.asarray, qparams_of(scale, zero_point))
    check_qparams(output, form, (), Names)
    return output
