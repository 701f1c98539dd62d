"""The names that the affine law uses of an array namespace, for tensors: eager, traced, or inside a kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from qcore import affine
from qtorch.dispatch import is_ordinary


class Names(affine.Names):
    """`qcore.affine.Names` for tensors on any device."""

    where = staticmethod(torch.where)
    clip = staticmethod(torch.clip)
    rint = staticmethod(torch.round)
    floor = staticmethod(torch.floor)
    divide = staticmethod(torch.divide)
    minimum = staticmethod(torch.minimum)
    maximum = staticmethod(torch.maximum)
    repeat = staticmethod(torch.repeat_interleave)
    concatenate = staticmethod(torch.concatenate)
    copy = staticmethod(torch.clone)
    asarray = staticmethod(torch.from_numpy)

    @staticmethod
    def arithmetic() -> AbstractContextManager[Any]:
        return nullcontext()

    @staticmethod
    def rounded(product: torch.Tensor) -> torch.Tensor:
        """On a GPU a compiler would contract the product with a sum that follows; lanes of integers in memory stop it."""
        if product.device.type == "cpu" or not torch.compiler.is_compiling():
            return product
        return _settled(product.view(torch.int32)).view(torch.float32)

    @staticmethod
    def dtype(x: torch.Tensor) -> str:
        return str(x.dtype).removeprefix("torch.")

    @staticmethod
    def astype(x: torch.Tensor, dtype: str) -> torch.Tensor:
        """A compiler would go on in float32 with what was rounded to 16 bits; lanes of integers in memory stop it."""
        result = x.to(getattr(torch, dtype))
        if result.dtype in (torch.float16, torch.bfloat16) and torch.compiler.is_compiling():
            return _settled(result.view(torch.int16)).view(result.dtype)
        return result

    @staticmethod
    def full(shape: tuple[int, ...], value: float, dtype: str) -> torch.Tensor:
        return torch.full(shape, value, dtype=getattr(torch, dtype))

    @staticmethod
    def full_like(x: torch.Tensor, value: float, dtype: str) -> torch.Tensor:
        return torch.full_like(x, value, dtype=getattr(torch, dtype))

    @staticmethod
    def amin(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        return torch.amin(x, axes) if axes else x  # to torch, no axes are all axes

    @staticmethod
    def amax(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        return torch.amax(x, axes) if axes else x

    @staticmethod
    def arange(size: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(size, dtype=torch.int32, device=like.device)

    @staticmethod
    def cumsum(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0)

    @staticmethod
    def bincount(index: torch.Tensor, weight: torch.Tensor | None, size: int) -> torch.Tensor:
        """Also without weights, which are then all 1."""
        return torch.bincount(index, weight, size)

    @staticmethod
    def searchsorted(edges: torch.Tensor, x: torch.Tensor, right: bool) -> torch.Tensor:
        return torch.searchsorted(edges, x, right=right, out_int32=True)

    @staticmethod
    def concrete(x: torch.Tensor) -> np.ndarray | None:
        """The values where they lie in ordinary memory: those of a GPU are not waited for."""
        return x.detach().numpy() if is_ordinary(x) and x.is_cpu else None


class KernelNames(Names):
    """The same inside a kernel, where quotients of parameters are worked out once, before the loop over elements."""

    @staticmethod
    def divide(a: torch.Tensor, b: torch.Tensor | float) -> torch.Tensor:
        return _settled(torch.divide(a, b))


def _settled(x: torch.Tensor) -> torch.Tensor:
    """The same; Inductor keeps in memory what leads to a strided view."""
    return x.as_strided(x.shape, x.stride())
