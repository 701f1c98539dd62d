"""Convolutions with their batch norms in one, two and three dimensions, and with a ReLU; `conv_bn` has their law."""

from __future__ import annotations

import torch
from torch import nn

from qtorch.nn.intrinsic import fused
from qtorch.nn.intrinsic.qat.conv_bn import QATConvBn


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


class ConvBnReLU1d(ConvBn1d):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()


class ConvBnReLU2d(ConvBn2d):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()


class ConvBnReLU3d(ConvBn3d):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()
