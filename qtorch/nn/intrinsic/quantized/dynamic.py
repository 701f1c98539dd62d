"""Fused float layers with quantized weights."""

from __future__ import annotations

import torch

from qcore.lazy import public_names
from qtorch.nn.quantized.dynamic import Linear

__all__ = ["LinearReLU"]
__dir__ = public_names(__name__)


class LinearReLU(Linear):
    """`qtorch.nn.quantized.dynamic.Linear` and a ReLU.

    Example:
        >>> LinearReLU(2, 1, bias_=False)(torch.tensor([[1.0, -1.0]]))
        tensor([[0.]])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """max(the linear layer's result, 0)."""
        return torch.relu(super().forward(input))
