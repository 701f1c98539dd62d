"""Functions of quantized tensors, with the names and arguments of torch's; the law is `qcore.affine.arithmetic`.

Pools, interpolation and clamps keep the parameters of what goes in; the others take a scale and a zero point.
"""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import QParams, arithmetic
from qcore.affine.quantized import check_convolution
from qcore.arguments import check_flag
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch.quantization.affine import make_qparams
from qtorch.quantization.dtypes import integers
from qtorch.quantization.functional import WIDTHS, conv2d, conv_to, linear
from qtorch.quantization.tensor import QTensor

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool2d",
    "avg_pool3d",
    "celu",
    "clamp",
    "conv1d",
    "conv2d",
    "conv3d",
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "interpolate",
    "leaky_relu",
    "linear",
    "max_pool1d",
    "max_pool2d",
    "relu",
    "relu6",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]


def conv1d(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: Any = 1.0,
    zero_point: Any = 0,
    dtype: Any = torch.quint8,
) -> QTensor:
    """A convolution of one dimension by integers; see `conv2d`."""
    geometry = stride, padding, dilation, groups, padding_mode
    return _conv(1, input, weight, bias, geometry, scale, zero_point, dtype)


def conv3d(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: Any = 1.0,
    zero_point: Any = 0,
    dtype: Any = torch.quint8,
) -> QTensor:
    """A convolution of three dimensions by integers; see `conv2d`."""
    geometry = stride, padding, dilation, groups, padding_mode
    return _conv(3, input, weight, bias, geometry, scale, zero_point, dtype)


def max_pool1d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> QTensor:
    """The greatest number of each window of a tensor of shape (batch, channels, size); see `max_pool2d`."""
    _check_indices(return_indices)
    return arithmetic.max_pool(input, 1, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> QTensor:
    """The greatest number of each window; see `qcore.affine.arithmetic.max_pool`.

    Args:
        input: of shape (batch, channels, height, width), or without the batch.
        kernel_size, stride, padding, dilation, ceil_mode: as for `torch.nn.functional.max_pool2d`.
        return_indices: False.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]), 0.5, 0, torch.quint8)
        >>> max_pool2d(x, 2).dequantize()
        tensor([[[3.]]])
    """
    _check_indices(return_indices)
    return arithmetic.max_pool(input, 2, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool2d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> QTensor:
    """The mean of each window; see `qcore.affine.arithmetic.avg_pool`, and `torch.nn.functional.avg_pool2d`."""
    return arithmetic.avg_pool(input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> QTensor:
    """The mean of each window of volumes; see `avg_pool2d`."""
    return arithmetic.avg_pool(input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_avg_pool2d(input: QTensor, output_size: Any) -> QTensor:
    """The means of so many windows as are asked for; see `qcore.affine.arithmetic.adaptive_avg_pool`."""
    return arithmetic.adaptive_avg_pool(input, output_size, 2)


def adaptive_avg_pool3d(input: QTensor, output_size: Any) -> QTensor:
    """The same of volumes."""
    return arithmetic.adaptive_avg_pool(input, output_size, 3)


def interpolate(
    input: QTensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> QTensor:
    """The tensor in another size; see `qcore.affine.arithmetic.interpolate`."""
    return arithmetic.interpolate(input, size, scale_factor, mode, align_corners)


upsample = interpolate


def upsample_bilinear(input: QTensor, size: Any = None, scale_factor: Any = None) -> QTensor:
    """`interpolate` with mode="bilinear" and align_corners=True."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def upsample_nearest(input: QTensor, size: Any = None, scale_factor: Any = None) -> QTensor:
    """`interpolate` with mode="nearest"."""
    return interpolate(input, size, scale_factor)


def elu(input: QTensor, scale: Any, zero_point: Any, alpha: float = 1.0) -> QTensor:
    """x where it is above 0, else alpha * (exp(x) - 1); see `qcore.affine.arithmetic.elu`."""
    return arithmetic.elu(input, _output(input, scale, zero_point), alpha=alpha)


def celu(input: QTensor, scale: Any, zero_point: Any, alpha: float = 1.0) -> QTensor:
    """x where it is above 0, else alpha * (exp(x / alpha) - 1)."""
    return arithmetic.celu(input, _output(input, scale, zero_point), alpha=alpha)


def leaky_relu(
    input: QTensor, negative_slope: float = 0.01, inplace: bool = False, scale: Any = None, zero_point: Any = None
) -> QTensor:
    """x where it is above 0, else x * negative_slope; without parameters the result has input's.

    Args:
        input, negative_slope, scale, zero_point: see `qcore.affine.arithmetic.leaky_relu`.
        inplace: whether the result is written over input, whose parameters it must then have.

    Raises:
        TypeError, ValueError: if an argument is not as above.
    """
    check_flag("inplace", inplace)
    if inplace and (scale is not None or zero_point is not None):
        raise ValueError(f"inplace=True with scale={scale} and zero_point={zero_point}; allowed are both None")
    result = arithmetic.leaky_relu(input, _output(input, scale, zero_point), slope=negative_slope)
    return _written(input, result, inplace)


def hardswish(input: QTensor, scale: Any, zero_point: Any) -> QTensor:
    """x * clip(x + 3, 0, 6) / 6; see `qcore.affine.arithmetic.hardswish`."""
    return arithmetic.hardswish(input, _output(input, scale, zero_point))


def hardsigmoid(input: QTensor, inplace: bool = False) -> QTensor:
    """clip(x + 3, 0, 6) / 6, with the parameters of numbers from 0 to 1, which input does not have.

    Args:
        input: QTensor.
        inplace: False.

    Raises:
        ValueError: if inplace is True.
    """
    if inplace:
        raise ValueError("inplace=True; allowed is False: the result has another scale")
    return arithmetic.hardsigmoid(input)


def relu(input: QTensor, inplace: bool = False) -> QTensor:
    """max(x, 0)."""
    return clamp(input, 0, inplace=inplace)


def relu6(input: QTensor, inplace: bool = False) -> QTensor:
    """x between 0 and the quantized 6.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> relu6(quantize_per_tensor(torch.tensor([-1.0, 2.0, 9.0]), 0.5, 20, torch.quint8)).dequantize()
        tensor([0., 2., 6.])
    """
    return clamp(input, 0, 6, inplace)


def hardtanh(input: QTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> QTensor:
    """x between the quantized bounds."""
    return clamp(input, min_val, max_val, inplace)


def clamp(input: QTensor, min_: float | None = None, max_: float | None = None, inplace: bool = False) -> QTensor:
    """x between the quantized bounds; see `qcore.affine.arithmetic.clamp`."""
    check_flag("inplace", inplace)
    return _written(input, arithmetic.clamp(input, min_, max_), inplace)


def _written(input: QTensor, result: QTensor, inplace: bool) -> QTensor:
    if not inplace:
        return result
    input.values.copy_(result.values)
    return input


def _check_indices(return_indices: Any) -> None:
    if return_indices is not False:
        raise ValueError(f"return_indices={return_indices}; allowed is False")


def _output(input: Any, scale: Any, zero_point: Any) -> QParams:
    if not isinstance(input, QTensor):
        raise TypeError(f"input is a {type(input).__name__}; allowed is a QTensor: insert a QuantStub before it")
    scale = input.qparams.scale if scale is None else scale
    zero_point = input.qparams.zero_point if zero_point is None else zero_point
    return make_qparams(scale, zero_point, None, input.device, is_plain_tensor(input.values))


def _conv(
    dimensions: int,
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None,
    geometry: tuple[Any, Any, Any, Any, Any],
    scale: Any,
    zero_point: Any,
    dtype: Any,
) -> QTensor:
    sizes = check_convolution(input, weight, *geometry, dimensions, WIDTHS)
    output = _output(input, scale, zero_point)
    return conv_to(input, weight, bias, (*sizes, geometry[3]), output, integers(dtype))
