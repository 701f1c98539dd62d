"""Functions of quantized tensors, with the names and arguments of torch's; the law is `qcore.affine.arithmetic`.

Pools, interpolation and clamps keep the parameters of what goes in; the others take a scale and a zero point.
"""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import arithmetic
from qcore.affine.quantized import check_convolution
from qtorch._affine.dtypes import integers
from qtorch._affine.functional import WIDTHS, conv2d, conv_to, linear
from qtorch._affine.tensor import QTensor
from qtorch._affine.torch_functions import (
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool2d,
    avg_pool3d,
    clamp,
    hardsigmoid,
    hardtanh,
    interpolate,
    leaky_relu,
    max_pool1d,
    max_pool2d,
    relu,
    relu6,
    result_qparams,
    threshold,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)

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
    "threshold",
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
    """A convolution of one dimension by integers, requantized; the law is that of `conv2d`.

    Args:
        input: of shape (batch, channels, size).
        weight: of shape (outputs, channels / groups, size).
        bias, scale, zero_point, stride, padding, dilation, groups, padding_mode, dtype: as for `conv2d`.

    Returns:
        A QTensor of shape (batch, outputs, size).

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3), 0.5, 0, torch.quint8)
        >>> weight = quantize_per_tensor(torch.ones(1, 1, 2), 0.5, 0, torch.qint8)
        >>> conv1d(x, weight).dequantize().flatten()
        tensor([3., 5.])
    """
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
    """A convolution of three dimensions by integers, requantized; the law is that of `conv2d`.

    Args:
        input: of shape (batch, channels, depth, height, width).
        weight: of shape (outputs, channels / groups, depth, height, width).
        bias, scale, zero_point, stride, padding, dilation, groups, padding_mode, dtype: as for `conv2d`.

    Returns:
        A QTensor of shape (batch, outputs, depth, height, width).

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 1, 1, 3), 0.5, 0, torch.quint8)
        >>> weight = quantize_per_tensor(torch.ones(1, 1, 1, 1, 2), 0.5, 0, torch.qint8)
        >>> conv3d(x, weight).dequantize().flatten()
        tensor([3., 5.])
    """
    geometry = stride, padding, dilation, groups, padding_mode
    return _conv(3, input, weight, bias, geometry, scale, zero_point, dtype)


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
    output = result_qparams(input, scale, zero_point)
    return conv_to(input, weight, bias, (*sizes, *geometry[3:]), output, integers(dtype))


def elu(input: QTensor, scale: Any, zero_point: Any, alpha: float = 1.0) -> QTensor:
    """x where it is above 0, else alpha * (exp(x) - 1); see `qcore.affine.arithmetic.elu`.

    Args:
        input: QTensor.
        scale, zero_point: of the result; None means input's.
        alpha: a finite number.

    Returns:
        A QTensor of input's shape and integers, with the parameters given.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-60.0, 0.0, 2.0]), 0.5, 120, torch.quint8)
        >>> elu(x, 0.5, 120).dequantize()
        tensor([-1.,  0.,  2.])
    """
    return arithmetic.elu(input, result_qparams(input, scale, zero_point), alpha=alpha)


def celu(input: QTensor, scale: Any, zero_point: Any, alpha: float = 1.0) -> QTensor:
    """x where it is above 0, else alpha * (exp(x / alpha) - 1); see `qcore.affine.arithmetic.celu`.

    Args:
        input: QTensor.
        scale, zero_point: of the result; None means input's.
        alpha: a finite number but 0.

    Returns:
        A QTensor of input's shape and integers, with the parameters given.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-60.0, 0.0, 2.0]), 0.5, 120, torch.quint8)
        >>> celu(x, 0.5, 120, alpha=0.5).dequantize()
        tensor([-0.5000,  0.0000,  2.0000])
    """
    return arithmetic.celu(input, result_qparams(input, scale, zero_point), alpha=alpha)


def hardswish(input: QTensor, scale: Any, zero_point: Any) -> QTensor:
    """x * clip(x + 3, 0, 6) / 6; see `qcore.affine.arithmetic.hardswish`.

    Args:
        input: QTensor.
        scale, zero_point: of the result; None means input's.

    Returns:
        A QTensor of input's shape and integers, with the parameters given.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> hardswish(x, 0.5, 120).dequantize()
        tensor([0., 0., 4.])
    """
    return arithmetic.hardswish(input, result_qparams(input, scale, zero_point))
