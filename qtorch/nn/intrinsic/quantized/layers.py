"""Linear layers, convolutions and batch norms in integers, with a ReLU."""

from __future__ import annotations

from qtorch.nn.quantized.conv import Conv1d, Conv2d, Conv3d
from qtorch.nn.quantized.linear import Linear
from qtorch.nn.quantized.normalization import BatchNorm2d, BatchNorm3d


class LinearReLU(Linear):
    """`qtorch.nn.quantized.Linear`, whose integers are no less than the zero point."""

    _relu = True


class ConvReLU1d(Conv1d):
    """`qtorch.nn.quantized.Conv1d`, whose integers are no less than the zero point."""

    _relu = True


class ConvReLU2d(Conv2d):
    """`qtorch.nn.quantized.Conv2d`, whose integers are no less than the zero point."""

    _relu = True


class ConvReLU3d(Conv3d):
    """`qtorch.nn.quantized.Conv3d`, whose integers are no less than the zero point."""

    _relu = True


class BNReLU2d(BatchNorm2d):
    """`qtorch.nn.quantized.BatchNorm2d`, whose integers are no less than the zero point."""

    _relu = True


class BNReLU3d(BatchNorm3d):
    """`qtorch.nn.quantized.BatchNorm3d`, whose integers are no less than the zero point."""

    _relu = True
