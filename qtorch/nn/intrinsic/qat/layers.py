"""Layers with a ReLU behind them, with a batch norm, or with both, whose weights are fake-quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtorch.nn import qat
from qtorch.nn.intrinsic import fused
from qtorch.nn.intrinsic.qat.conv_bn import QATConvBn


class _WithReLU:
    """A layer's results through a ReLU; it stands before the layer's class."""

    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input).relu_()  # type: ignore[misc]


class ConvBn1d(QATConvBn, nn.Conv1d):
    """`QATConvBn` in one dimension.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv1d`; there is no bias by default.
        eps, momentum: of the batch norm.
        freeze_bn: True leaves running statistics as they are.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBn1d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> layer(torch.zeros(2, 1, 4)).shape, layer.bn.num_batches_tracked
        (torch.Size([2, 3, 3]), tensor(1))
    """

    floats, norm = fused.ConvBn1d, nn.BatchNorm1d


class ConvBn2d(QATConvBn, nn.Conv2d):
    """`QATConvBn` in two dimensions.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv2d`; there is no bias by default.
        eps, momentum: of the batch norm.
        freeze_bn: True leaves running statistics as they are.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBn2d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> layer(torch.randn(2, 1, 4, 4)).shape, layer.bn.num_batches_tracked
        (torch.Size([2, 3, 3, 3]), tensor(1))
    """

    floats, norm = fused.ConvBn2d, nn.BatchNorm2d


class ConvBn3d(QATConvBn, nn.Conv3d):
    """`QATConvBn` in three dimensions.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv3d`; there is no bias by default.
        eps, momentum: of the batch norm.
        freeze_bn: True leaves running statistics as they are.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBn3d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> layer(torch.zeros(2, 1, 4, 4, 4)).shape, layer.bn.num_batches_tracked
        (torch.Size([2, 3, 3, 3, 3]), tensor(1))
    """

    floats, norm = fused.ConvBn3d, nn.BatchNorm3d


class ConvBnReLU1d(_WithReLU, ConvBn1d):
    """`ConvBn1d` and a ReLU.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `ConvBn1d`.
        eps, momentum, freeze_bn, qconfig: as for it.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBnReLU1d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.ones(2, 1, 4)) >= 0).all())
        True
    """

    floats = fused.ConvBnReLU1d


class ConvBnReLU2d(_WithReLU, ConvBn2d):
    """`ConvBn2d` and a ReLU.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `ConvBn2d`.
        eps, momentum, freeze_bn, qconfig: as for it.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBnReLU2d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.ones(2, 1, 4, 4)) >= 0).all())
        True
    """

    floats = fused.ConvBnReLU2d


class ConvBnReLU3d(_WithReLU, ConvBn3d):
    """`ConvBn3d` and a ReLU.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `ConvBn3d`.
        eps, momentum, freeze_bn, qconfig: as for it.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBnReLU3d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.ones(2, 1, 4, 4, 4)) >= 0).all())
        True
    """

    floats = fused.ConvBnReLU3d


class LinearReLU(_WithReLU, qat.Linear):
    """`qtorch.nn.qat.Linear` and a ReLU.

    Args:
        in_features, out_features, bias: as for `torch.nn.Linear`.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = LinearReLU(1, 1, bias=False, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.tensor([[-2.0], [3.0]])) >= 0).all())
        True
    """

    floats = fused.LinearReLU


class ConvReLU1d(_WithReLU, qat.Conv1d):
    """`qtorch.nn.qat.Conv1d` and a ReLU.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv1d`.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvReLU1d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.ones(2, 1, 4)) >= 0).all())
        True
    """

    floats = fused.ConvReLU1d


class ConvReLU2d(_WithReLU, qat.Conv2d):
    """`qtorch.nn.qat.Conv2d` and a ReLU.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv2d`.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvReLU2d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.ones(2, 1, 4, 4)) >= 0).all())
        True
    """

    floats = fused.ConvReLU2d


class ConvReLU3d(_WithReLU, qat.Conv3d):
    """`qtorch.nn.qat.Conv3d` and a ReLU.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv3d`.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Raises:
        TypeError: if qconfig is no `QConfig`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvReLU3d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> bool((layer(torch.ones(2, 1, 4, 4, 4)) >= 0).all())
        True
    """

    floats = fused.ConvReLU3d
