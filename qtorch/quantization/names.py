"""The names that the affine law uses of an array namespace, for tensors: eager, traced, or inside a kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from qcore import affine
from qtorch.dispatch import is_ordinary
from qtorch.quantization.extremes import whole_extremes


class Names(affine.Names):
    """`qcore.affine.Names` for tensors on any device."""

    where = staticmethod(torch.where)
    clip = staticmethod(torch.clip)
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
    def rint(x: torch.Tensor) -> torch.Tensor:
        """A compiler drops a zero point of 0, which would take the sign from a zero: here it has none before."""
        steps = torch.round(x)
        return Names.unsigned(steps) if torch.compiler.is_compiling() else steps

    @staticmethod
    def unsigned(x: torch.Tensor) -> torch.Tensor:
        """A compiler drops an addition of 0."""
        return torch.where(x == 0, 0.0, x) if torch.compiler.is_compiling() else x + 0.0

    @staticmethod
    def rounded(product: torch.Tensor) -> torch.Tensor:
        """A compiler for GPUs would contract the product with a sum that follows; integers in memory stop it."""
        if product.device.type == "cpu" or not torch.compiler.is_compiling():
            return product
        return _settled(product.view(torch.int32)).view(torch.float32)

    @staticmethod
    def dtype(x: torch.Tensor) -> str:
        return str(x.dtype).removeprefix("torch.")

    @staticmethod
    def astype(x: torch.Tensor, dtype: str) -> torch.Tensor:
        """A compiler would go on in float32 with what was rounded to 16 bits; integers in memory stop it."""
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
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        if not axes:
            return x, x  # to torch, no axes are all axes
        if len(axes) == x.dim() and is_ordinary(x):
            return whole_extremes(x)
        return torch.amin(x, axes), torch.amax(x, axes)

    @staticmethod
    def arange(size: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(size, dtype=torch.int32, device=like.device)

    @staticmethod
    def cumsum(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0)

    @staticmethod
    def bincount(index: torch.Tensor, weight: torch.Tensor, size: int) -> torch.Tensor:
        return torch.bincount(index, weight, size)

    @staticmethod
    def searchsorted(edges: torch.Tensor, x: torch.Tensor, right: bool) -> torch.Tensor:
        return torch.searchsorted(edges, x, right=right, out_int32=True)

    @staticmethod
    def concrete(x: torch.Tensor) -> np.ndarray | None:
        """The values where they lie in ordinary memory: those of a GPU are not waited for."""
        return x.detach().numpy() if is_ordinary(x) and x.is_cpu else None


class KernelNames(Names):
    """The same inside a kernel, where quotients of parameters are worked out once, before the loop over elements.

    Its zero points are arguments, which are not known to be 0.
    """

    @staticmethod
    def rint(x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)

    @staticmethod
    def divide(a: torch.Tensor, b: torch.Tensor | float) -> torch.Tensor:
        return _settled(torch.divide(a, b))


class SmallNames(affine.Names):
    """NumPy's names, for states in ordinary memory; only what is observed is a tensor."""

    @staticmethod
    def dtype(x: torch.Tensor) -> str:  # type: ignore[override]
        return Names.dtype(x)

    @staticmethod
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[np.ndarray, ...]:  # type: ignore[override]
        ends = Names.extremes(x, axes)
        if x.dtype is torch.bfloat16:  # which NumPy does not know
            ends = (end.to(torch.float32) for end in ends)
        return tuple(end.numpy() for end in ends)


def _settled(x: torch.Tensor) -> torch.Tensor:
    """The same; Inductor keeps in memory what leads to a strided view."""
    return x.as_strided(x.shape, x.stride())
