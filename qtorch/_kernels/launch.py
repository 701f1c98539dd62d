"""Tensors as memory for kernels: without gaps, at aligned addresses, with dimensions in one order.

Kernels of elements have no strides: they read memory from one end to the other. Their results have the strides that
torch's own operations on the same tensor would return. There are two kinds of kernels:

    C, on the CPU       a function of sizes and addresses, all integers (`source.Kernel`); it checks their number
    a package           a function of tensors without gaps; the last ones are results

The callers choose the kernel and its parameters: `qtorch._rounding.paths.kernels` for rounding and codes,
`qtorch._affine.launch` for scales and zero points, namespaces for products and sums.
"""

from __future__ import annotations

import os
from functools import cache

import torch

from qcore.arguments import quoted

LIMIT = 1 << 31  # elements, which packages count in 31 bits
VECTOR = 16  # bytes, to which packages want tensors aligned
_CHOICES = ("c", "inductor")


@cache
def serve_cpu() -> bool:
    """True if `QTORCH_KERNELS` chooses packages on the CPU, too, instead of kernels in C."""
    chosen = os.environ.get("QTORCH_KERNELS") or _CHOICES[0]
    if chosen not in _CHOICES:
        raise ValueError(f"QTORCH_KERNELS={quoted(chosen)}; allowed are {', '.join(_CHOICES)}")
    return chosen == "inductor"


def aligned(x: torch.Tensor, to: int = 0) -> torch.Tensor:
    """x, or a copy if its address is not a multiple of `to` bytes, by default of an element.

    `torch.frombuffer` takes any offset.
    """
    return x.clone() if x.data_ptr() % (to or x.element_size()) else x


def is_dense(x: torch.Tensor) -> bool:
    """True if x's elements lie in memory without gaps, in any order: torch's results for x then have its strides."""
    return torch.empty_like(x, device="meta").stride() == x.stride()


def with_strides_of(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A fresh result, in the memory format of torch's own results for x."""
    if result.stride() == x.stride():
        return result
    kept = torch.empty_like(x, dtype=result.dtype)
    return result if result.stride() == kept.stride() else kept.copy_(result)


def memory_order(x: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost one, as torch lays out results for x; None if they are in their usual order."""
    if x.is_contiguous():
        return None
    return sorted(range(x.dim()), key=torch.empty_like(x, device="meta").stride, reverse=True)


def ordered(x: torch.Tensor, order: list[int] | None) -> torch.Tensor:
    """x with its dimensions in another order, without gaps."""
    return (x if order is None else x.permute(order)).contiguous()


def restored(result: torch.Tensor, order: list[int] | None) -> torch.Tensor:
    """The inverse of `ordered`."""
    return result if order is None else result.permute(sorted(range(len(order)), key=order.__getitem__))


def addresses(*tensors: torch.Tensor | None) -> list[int]:
    """The addresses of tensors, for a kernel in C; 0 for None."""
    return [0 if x is None else x.data_ptr() for x in tensors]
