"""What laws of float32 numbers use of an array namespace, for tensors: eager or traced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch

from qcore.numerics import operations
from qtorch._rounding.paths.operations import materialize


class Names(operations.Names):
    """`qcore.numerics.operations.Names` for tensors on any device.

    Example:
        >>> Names.mul(torch.tensor([1.0, 2.0**-100]), torch.tensor([3.0, 2.0**-100]))  # 2^-200 is a zero
        tensor([3., 0.])
    """

    where = staticmethod(torch.where)
    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    tanh = staticmethod(torch.tanh)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    root = staticmethod(torch.sqrt)
    floor = staticmethod(torch.floor)
    minimum = staticmethod(torch.minimum)
    concatenate = staticmethod(torch.concatenate)
    broadcast_to = staticmethod(torch.broadcast_to)
    arithmetic = staticmethod(nullcontext)

    searchsorted = staticmethod(torch.searchsorted)
    materialize = staticmethod(materialize)

    @staticmethod
    def argsort(x: torch.Tensor) -> torch.Tensor:
        return torch.argsort(x, stable=True)

    @staticmethod
    def from_numpy(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x)

    @staticmethod
    def is_float32(x: torch.Tensor) -> bool:
        return x.dtype is torch.float32

    @staticmethod
    def to_float32(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32)

    @staticmethod
    def to_float64(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64)

    @staticmethod
    def to_int32(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.int32)

    @staticmethod
    def bits(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int32)

    @staticmethod
    def floats(bits: torch.Tensor) -> torch.Tensor:
        return bits.view(torch.float32)

    @staticmethod
    def arange(size: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(size, dtype=torch.int32, device=like.device)

    @staticmethod
    def zeros(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(shape)

    @staticmethod
    def greatest(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        return torch.amax(x, axes, keepdim=True)
