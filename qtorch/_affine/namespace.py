"""Array namespaces of the affine law: torch with a kernel for extremes, and NumPy for small states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch

import qcore.namespace
from qcore.affine.functional.operands import stored
from qtorch import _namespace as namespace
from qtorch._affine.kernels.laws import extremes as kernel_of_extremes
from qtorch._affine.programs import is_running, law
from qtorch._kernels.launch import is_dense
from qtorch._rounding.paths.choice import is_plain_tensor

_LARGE = 1 << 15  # elements, from which on a kernel finds extremes faster than torch


def _written(numbers: Sequence[float], dtype: str, like: torch.Tensor) -> torch.Tensor:
    """Numbers as a tensor; made by operations in an operator that torch takes apart, as its program cannot add data."""
    if not is_running():
        return namespace.Names.constant(numbers, dtype, like)
    runs = [(number, len(list(run))) for number, run in groupby(numbers)]
    kind: Any = {"dtype": getattr(torch, dtype), "device": like.device}
    return torch.cat([torch.full((count,), number, **kind) for number, count in runs])


class Names(namespace.Names):
    """`qtorch._namespace.Names`, with extremes by a kernel, and with the values of tensors on the CPU."""

    constant = staticmethod(_written)

    @staticmethod
    def program(function: Callable[..., Any], arrays: Sequence[Any], *settings: Any) -> Any:
        """Most laws make one tensor, and so are one operator in exported programs; sums with numbers are not."""
        return law(function, arrays, *settings) if function is stored else function(*arrays, *settings)

    @staticmethod
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        if axes and len(axes) == x.dim() and is_plain_tensor(x):
            return whole_extremes(x)
        return namespace.Names.extremes(x, axes)

    @staticmethod
    def concrete(x: torch.Tensor) -> np.ndarray | None:
        """The values of a plain tensor on the CPU; None for others: reading a GPU's values would wait for it."""
        return x.detach().numpy() if is_plain_tensor(x) and x.is_cpu else None


class SmallNames(qcore.namespace.Names):
    """NumPy's namespace, for states on the CPU; only the observed x is a tensor."""

    dtype = staticmethod(Names.dtype)

    @staticmethod
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[np.ndarray, ...]:  # type: ignore[override]
        ends = Names.extremes(x, axes)
        if x.dtype is torch.bfloat16:  # NumPy has no bfloat16
            ends = (end.to(torch.float32) for end in ends)
        return tuple(end.numpy() for end in ends)


def whole_extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The least and the greatest element of a plain tensor with elements; both are NaN if an element is.

    The order of -0.0 and 0.0 is not defined. The kernel is faster than torch, which tests each element for NaN and
    waits for each comparison before the next.
    """
    served = x.dtype is torch.float32 and x.is_cpu and x.numel() >= _LARGE
    if served and is_dense(x) and (kernel := kernel_of_extremes()):
        low, high = (torch.empty((), dtype=torch.float32, device="cpu") for _ in range(2))
        kernel(1, x.numel(), 1, x.numel(), *(one.data_ptr() for one in (x, low, high)))
        return low, high
    return torch.aminmax(x)
