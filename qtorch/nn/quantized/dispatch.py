"""What torch's own modules do with quantized tensors: `torch.nn.MaxPool2d` takes them as it takes floats."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import arithmetic
from qtorch.nn.quantized import functional
from qtorch.quantization.tensor import QTensor


def _interpolate(input: QTensor, *others: Any, recompute_scale_factor: Any = None, **settings: Any) -> QTensor:
    """With the arguments that `torch.nn.Upsample` passes."""
    if recompute_scale_factor or settings.pop("antialias", False):
        raise ValueError("interpolate of a QTensor with recompute_scale_factor or antialias; allowed is neither")
    return functional.interpolate(input, *others, **settings)


_NAMES = (
    *("max_pool1d", "max_pool2d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("relu6", "hardtanh", "hardsigmoid", "threshold"),
)
QTensor.functions.update((name, getattr(functional, name)) for name in _NAMES)
QTensor.functions.update(interpolate=_interpolate, sigmoid=arithmetic.sigmoid, tanh=arithmetic.tanh)
QTensor.functions[torch.nn.functional.threshold.__name__] = functional.threshold  # "_threshold", in 2.13
