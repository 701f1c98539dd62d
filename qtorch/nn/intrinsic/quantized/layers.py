"""Linear layers, convolutions and batch norms in integers, with a ReLU."""

from __future__ import annotations

from typing import Any

import torch

from qtorch.nn.quantized.conv import Conv1d, Conv2d, Conv3d
from qtorch.nn.quantized.linear import Linear
from qtorch.nn.quantized.normalization import BatchNorm2d, BatchNorm3d


class LinearReLU(Linear):
    """`qtorch.nn.quantized.Linear`, whose integers are no less than the zero point; `bias` is its `bias_`."""

    _relu = True

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = torch.qint8, **settings: Any
    ) -> None:
        super().__init__(in_features, out_features, bias, dtype, **settings)


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
