"""Pools of quantized tensors, with torch's names and arguments: one law for one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch  # noqa: F401  # for examples

from qcore.affine import functional
from qcore.arguments import quoted
from qcore.names import in_dimensions

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


def _max_pool(dimensions: int):  # its result has the type of the function, which checkers infer
    def max_pool(
        input: QTensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> QTensor:
        """The greatest number of each window; see `qcore.affine.functional.max_pool`.

        Args:
            input: of shape (batch, channels, {sizes}), or without the batch.
            kernel_size, stride, padding, dilation, ceil_mode: as for `torch.nn.functional.{name}`.
            return_indices: False.

        Returns:
            A QTensor of shape (batch, channels, *windows), with input's integers and parameters.

        Example:
            >>> from qtorch.quantization import quantize_per_tensor
            >>> x = torch.tensor([1.0, 2.0, 3.0, 6.0]).reshape(1, {ones}4)
            >>> q = quantize_per_tensor(x, 0.5, 0, torch.quint8)
            >>> {name}(q, ({ones}2)).dequantize().flatten()
            tensor([2., 6.])
        """
        if return_indices is not False:
            raise ValueError(f"return_indices={quoted(return_indices)}; allowed is False")
        return functional.max_pool(input, dimensions, kernel_size, stride, padding, dilation, ceil_mode)

    return in_dimensions(dimensions, max_pool)


max_pool1d = _max_pool(1)
max_pool2d = _max_pool(2)
max_pool3d = _max_pool(3)


def _avg_pool(dimensions: int):
    def avg_pool(
        input: QTensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> QTensor:
        """The mean of each window; see `qcore.affine.functional.avg_pool`.

        Args:
            input: of shape (batch, channels, {sizes}), or without the batch.
            kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as for
                `torch.nn.functional.{name}`.

        Returns:
            A QTensor of shape (batch, channels, *windows), with input's integers and parameters.

        Example:
            >>> from qtorch.quantization import quantize_per_tensor
            >>> x = torch.tensor([1.0, 2.0, 3.0, 6.0]).reshape(1, {ones}4)
            >>> q = quantize_per_tensor(x, 0.5, 0, torch.quint8)
            >>> {name}(q, ({ones}2)).dequantize().flatten()
            tensor([1.5000, 4.5000])
        """
        windows = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        return functional.avg_pool(input, dimensions, *windows)

    return in_dimensions(dimensions, avg_pool)


def avg_pool1d(
    input: QTensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> QTensor:
    """The mean of each window of signals, with other arguments and the result of `avg_pool2d`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 2.0, 3.0, 6.0]]), 0.5, 0, torch.quint8)
        >>> avg_pool1d(x, 2).dequantize()
        tensor([[1.5000, 4.5000]])
    """
    return functional.avg_pool(input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad)


avg_pool2d = _avg_pool(2)
avg_pool3d = _avg_pool(3)


def _adaptive_avg_pool(dimensions: int):
    def adaptive_avg_pool(input: QTensor, output_size: int | Sequence[int | None] | None) -> QTensor:
        """The means of a given number of windows; see `qcore.affine.functional.adaptive_avg_pool`.

        Args:
            input: of shape (batch, channels, {sizes}), or without the batch.
            output_size: the number of windows along all dimensions, or along each; None keeps a dimension's size.

        Returns:
            A QTensor of shape (batch, channels, *windows), with input's integers and parameters.

        Example:
            >>> from qtorch.quantization import quantize_per_tensor
            >>> x = torch.tensor([1.0, 2.0, 3.0, 6.0]).reshape(1, {ones}4)
            >>> q = quantize_per_tensor(x, 0.5, 0, torch.quint8)
            >>> {name}(q, ({ones}2)).dequantize().flatten()
            tensor([1.5000, 4.5000])
        """
        return functional.adaptive_avg_pool(input, output_size, dimensions)

    return in_dimensions(dimensions, adaptive_avg_pool)


adaptive_avg_pool1d = _adaptive_avg_pool(1)
adaptive_avg_pool2d = _adaptive_avg_pool(2)
adaptive_avg_pool3d = _adaptive_avg_pool(3)
