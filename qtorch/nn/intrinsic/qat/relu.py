"""Layers with their ReLU, whose weights are fake-quantized."""

from __future__ import annotations

import torch

from qtorch.nn import qat
from qtorch.nn.intrinsic import fused


class LinearReLU(qat.Linear):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()


class ConvReLU1d(qat.Conv1d):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()


class ConvReLU2d(qat.Conv2d):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()


class ConvReLU3d(qat.Conv3d):
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu_()
