"""The names that the affine law uses of an array namespace, for tensors: eager or traced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch

from qcore import affine
from qtorch._kernels.affine import extremes as kernel_of_extremes
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.paths.cpu import is_dense

_LARGE = 1 << 15  # elements, from which a kernel finds extremes sooner than torch


class Names(affine.Names):
    """`qcore.affine.Names` for tensors on any device."""

    where = staticmethod(torch.where)
    clip = staticmethod(torch.clip)
    floor = staticmethod(torch.floor)
    divide = staticmethod(torch.divide)
    exp = staticmethod(torch.exp)
    tanh = staticmethod(torch.tanh)
    sqrt = staticmethod(torch.sqrt)
    minimum = staticmethod(torch.minimum)
    maximum = staticmethod(torch.maximum)
    repeat = staticmethod(torch.repeat_interleave)
    concatenate = staticmethod(torch.concatenate)
    bincount = staticmethod(torch.bincount)  # type: ignore[assignment]
    arithmetic = staticmethod(nullcontext)
    dtype = staticmethod(lambda x: str(x.dtype).removeprefix("torch."))
    full = staticmethod(lambda shape, value, dtype: torch.full(shape, value, dtype=getattr(torch, dtype)))
    full_like = staticmethod(lambda x, value, dtype: torch.full_like(x, value, dtype=getattr(torch, dtype)))
    total = staticmethod(lambda x, axes: torch.sum(x, axes, keepdim=True, dtype=torch.int64))
    constant = staticmethod(
        lambda numbers, dtype, like: torch.tensor(numbers, dtype=getattr(torch, dtype), device=like.device)
    )
    arange = staticmethod(lambda size, like: torch.arange(size, dtype=torch.int32, device=like.device))
    cumsum = staticmethod(lambda x: torch.cumsum(x, 0))
    einsum = staticmethod(torch.einsum)
    copy = staticmethod(torch.clone)
    asarray = staticmethod(torch.from_numpy)

    @staticmethod
    def rint(x: torch.Tensor) -> torch.Tensor:
        """A compiler drops a zero point of 0, which would take the sign from a zero: here it has none before."""
        steps = torch.round(x)
        return Names.unsigned(steps) if torch.compiler.is_dynamo_compiling() else steps

    @staticmethod
    def unsigned(x: torch.Tensor) -> torch.Tensor:
        """A compiler drops an addition of 0."""
        return torch.where(x == 0, 0.0, x) if torch.compiler.is_dynamo_compiling() else x + 0.0

    @staticmethod
    def rounded(product: torch.Tensor) -> torch.Tensor:
        """A compiler for GPUs would contract the product with a sum that follows; integers in memory stop it."""
        if product.device.type == "cpu" or not torch.compiler.is_dynamo_compiling():
            return product
        return _kept_in_memory(product.view(torch.int32)).view(torch.float32)

    @staticmethod
    def astype(x: torch.Tensor, dtype: str) -> torch.Tensor:
        """A compiler would go on in float32 with what was rounded to 16 bits; integers in memory stop it."""
        result = x.to(getattr(torch, dtype))
        if result.dtype in (torch.float16, torch.bfloat16) and torch.compiler.is_dynamo_compiling():
            return _kept_in_memory(result.view(torch.int16)).view(result.dtype)
        return result

    @staticmethod
    def pad(x: torch.Tensor, widths: Sequence[tuple[int, int]], value: int) -> torch.Tensor:
        return torch.nn.functional.pad(x, [end for pair in reversed(widths) for end in pair], value=value)

    @staticmethod
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        if not axes:
            return x, x  # to torch, no axes are all axes
        if len(axes) == x.dim() and is_plain_tensor(x):
            return whole_extremes(x)
        return torch.amin(x, axes), torch.amax(x, axes)

    @staticmethod
    def searchsorted(edges: torch.Tensor, x: torch.Tensor, right: bool) -> torch.Tensor:
        return torch.searchsorted(edges, x, right=right, out_int32=True)

    @staticmethod
    def concrete(x: torch.Tensor) -> np.ndarray | None:
        """The values where they lie in ordinary memory: those of a GPU are not waited for."""
        return x.detach().numpy() if is_plain_tensor(x) and x.is_cpu else None


class SmallNames(affine.Names):
    """NumPy's names, for states in ordinary memory; only what is observed is a tensor."""

    dtype = staticmethod(Names.dtype)

    @staticmethod
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[np.ndarray, ...]:  # type: ignore[override]
        ends = Names.extremes(x, axes)
        if x.dtype is torch.bfloat16:  # which NumPy does not know
            ends = (end.to(torch.float32) for end in ends)
        return tuple(end.numpy() for end in ends)


def whole_extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The least and the greatest element of a plain tensor that has elements; both NaN where one is.

    Which zero is less is not said. torch looks for NaN at each element, and waits for each comparison before the next.
    """
    served = x.dtype is torch.float32 and x.is_cpu and x.numel() >= _LARGE
    if served and is_dense(x) and (kernel := kernel_of_extremes()):
        low, high = (torch.empty((), dtype=torch.float32, device="cpu") for _ in range(2))
        kernel(1, x.numel(), 1, x.numel(), *(one.data_ptr() for one in (x, low, high)))
        return low, high
    return torch.aminmax(x)


def _kept_in_memory(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, which Inductor writes to memory because a strided view of it follows."""
    return x.as_strided(x.shape, x.stride())
