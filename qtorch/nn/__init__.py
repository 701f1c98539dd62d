"""Layers for quantized models: fused, trained with simulated quantization, and computing in integers."""

import qtorch.nn.intrinsic.qat  # noqa: F401  # an attribute of intrinsic, as in torch
from qtorch.nn import intrinsic, qat, quantized

__all__ = ["intrinsic", "qat", "quantized"]
