"""Functions of tensors."""

from __future__ import annotations

import torch

from qcore.numerics.elementary import EXP
from qcore.numerics.softmax import SOFTMAX, SUM
from qtorch.reproducible.call import differentiable

_sum, _softmax = differentiable(SUM), differentiable(SOFTMAX)
exp = differentiable(EXP)


def sum(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return _sum(x, axes=(dim,), keepdims=False)


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return _softmax(x, axis=dim)
