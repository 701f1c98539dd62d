"""Pools and interpolation of quantized tensors, which keep the parameters of what goes in."""

from __future__ import annotations

from typing import Any

from qcore.affine import arithmetic
from qtorch.quantization.tensor import QTensor


def max_pool1d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> QTensor:
    """The greatest number of each window; the law is that of `qcore.affine.arithmetic.max_pool`.

    Args:
        input: of shape (batch, channels, size), or without the batch.
        kernel_size, stride, padding, dilation, ceil_mode, return_indices: as for `max_pool2d`.

    Returns:
        A QTensor of shape (batch, channels, windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 0.5, 0, torch.quint8)
        >>> max_pool1d(x, 2).dequantize()
        tensor([[3., 2.]])
    """
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

    Returns:
        A QTensor of shape (batch, channels, windows down, windows across), or without the batch, with input's
        integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
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
    """The mean of each window; the law is that of `qcore.affine.arithmetic.avg_pool`.

    Args:
        input: of shape (batch, channels, height, width), or without the batch.
        kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as for
            `torch.nn.functional.avg_pool2d`.

    Returns:
        A QTensor of shape (batch, channels, windows down, windows across), or without the batch, with input's
        integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]), 0.5, 0, torch.quint8)
        >>> avg_pool2d(x, 2).dequantize()
        tensor([[[3.]]])
    """
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
    """The mean of each window of volumes; the law is that of `qcore.affine.arithmetic.avg_pool`.

    Args:
        input: of shape (batch, channels, depth, height, width), or without the batch.
        kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as for
            `torch.nn.functional.avg_pool3d`.

    Returns:
        A QTensor of shape (batch, channels, *windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), 0.5, 0, torch.quint8)
        >>> avg_pool3d(x, (1, 2, 2)).dequantize()
        tensor([[[[3.]]]])
    """
    return arithmetic.avg_pool(input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_avg_pool2d(input: QTensor, output_size: Any) -> QTensor:
    """The means of as many windows as are asked for; the law is that of `qcore.affine.arithmetic.adaptive_avg_pool`.

    Args:
        input: of shape (batch, channels, height, width), or without the batch.
        output_size: how many windows there are along all dimensions, or along each; None leaves a dimension as it is.

    Returns:
        A QTensor of shape (batch, channels, *windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]), 0.5, 0, torch.quint8)
        >>> adaptive_avg_pool2d(x, 1).dequantize()
        tensor([[[3.]]])
    """
    return arithmetic.adaptive_avg_pool(input, output_size, 2)


def adaptive_avg_pool3d(input: QTensor, output_size: Any) -> QTensor:
    """The means of as many windows as are asked for; the law is that of `qcore.affine.arithmetic.adaptive_avg_pool`.

    Args:
        input: of shape (batch, channels, depth, height, width), or without the batch.
        output_size: how many windows there are along all dimensions, or along each; None leaves a dimension as it is.

    Returns:
        A QTensor of shape (batch, channels, *windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), 0.5, 0, torch.quint8)
        >>> adaptive_avg_pool3d(x, 1).dequantize()
        tensor([[[[3.]]]])
    """
    return arithmetic.adaptive_avg_pool(input, output_size, 3)


def interpolate(
    input: QTensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> QTensor:
    """The tensor in another size; the law is that of `qcore.affine.arithmetic.interpolate`.

    Args:
        input: of shape (batch, channels, height, width), or of volumes.
        size, scale_factor, mode, align_corners: as for `torch.nn.functional.interpolate`, with mode "nearest" or
            "bilinear".

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> interpolate(x, scale_factor=2).dequantize()
        tensor([[[[1., 1., 3., 3.],
                  [1., 1., 3., 3.]]]])
    """
    return arithmetic.interpolate(input, size, scale_factor, mode, align_corners)


upsample = interpolate


def upsample_bilinear(input: QTensor, size: Any = None, scale_factor: Any = None) -> QTensor:
    """`interpolate` with mode="bilinear" and align_corners=True.

    Args:
        input, size, scale_factor: as for `interpolate`.

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_bilinear(x, (1, 3)).dequantize()
        tensor([[[[1., 2., 3.]]]])
    """
    return interpolate(input, size, scale_factor, "bilinear", True)


def upsample_nearest(input: QTensor, size: Any = None, scale_factor: Any = None) -> QTensor:
    """`interpolate` with mode="nearest".

    Args:
        input, size, scale_factor: as for `interpolate`.

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_nearest(x, (1, 4)).dequantize()
        tensor([[[[1., 1., 3., 3.]]]])
    """
    return interpolate(input, size, scale_factor)


def _check_indices(return_indices: Any) -> None:
    if return_indices is not False:
        raise ValueError(f"return_indices={return_indices}; allowed is False")
