"""Array namespaces of the affine law: torch with a kernel for extremes, and NumPy for small states."""

from __future__ import annotations

import numpy as np
import torch

import qcore.namespace
from qtorch import _namespace as namespace
from qtorch._affine.kernels.laws import extremes as kernel_of_extremes
from qtorch._kernels.launch import is_dense
from qtorch._rounding.paths.choice import is_plain_tensor

_LARGE = 1 << 15  # elements, from which on a kernel finds extremes faster than torch


class Names(namespace.Names):
    """`qtorch._namespace.Names`, with extremes by a kernel, and with the values of tensors on the CPU."""

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
