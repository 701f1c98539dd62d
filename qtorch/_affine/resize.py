"""Quantized images in other sizes, with torch's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch  # noqa: F401  # for examples

from qcore.affine import functional

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor

__all__ = ["interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]


def interpolate(
    input: QTensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> QTensor:
    """The tensor in another size; the law is that of `qcore.affine.functional.interpolate`.

    Args:
        input: of shape (batch, channels, height, width), or of volumes.
        size, scale_factor, mode, align_corners: as for `torch.nn.functional.interpolate`, with mode "nearest" or
            "bilinear".

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> interpolate(x, scale_factor=2).dequantize()
        tensor([[[[1., 1., 3., 3.],
                  [1., 1., 3., 3.]]]])
    """
    return functional.interpolate(input, size, scale_factor, mode, align_corners)


upsample = interpolate


def upsample_bilinear(
    input: QTensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> QTensor:
    """The tensor in another size, with mode="bilinear", align_corners=True and other arguments of `interpolate`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_bilinear(x, (1, 3)).dequantize()
        tensor([[[[1., 2., 3.]]]])
    """
    return interpolate(input, size, scale_factor, "bilinear", True)


def upsample_nearest(
    input: QTensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> QTensor:
    """The tensor in another size, with mode="nearest" and other arguments of `interpolate`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_nearest(x, (1, 4)).dequantize()
        tensor([[[[1., 1., 3., 3.]]]])
    """
    return interpolate(input, size, scale_factor)
