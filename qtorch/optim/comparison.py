"""Whether two tensors have the same bits, by a fused kernel where they are large, as torch has no vectors for that."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from qtorch import kernels
from qtorch.dispatch import is_ordinary

_LARGE = 1 << 15  # bytes, from which a kernel pays


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits (-0.0 differs from 0.0, a NaN equals itself)."""
    if _is_large(x) and _is_large(y) and (kernel := _load()):
        differ = torch.empty((), dtype=torch.bool, device="cpu")
        kernel(x.nbytes // 8, x, y, differ)
        return not differ.item()
    return torch.equal(as_bits(x), as_bits(y))


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()])


def _is_large(x: torch.Tensor) -> bool:
    """Whether x is worth a kernel, and such that one may read it."""
    return x.is_cpu and x.is_contiguous() and x.nbytes >= _LARGE and x.nbytes % 8 == 0 and is_ordinary(x)


class _Differ(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x != y).any()


@cache
def _load() -> kernels.Kernel | None:
    return kernels.load_module("comparison", (Path(__file__),), torch.device("cpu"), _example)


def _example() -> kernels.Example:
    x, y = (torch.zeros(1 << 20, dtype=torch.int64, device="cpu") for _ in range(2))
    size = torch.export.Dim("d0", min=2, max=2**62)
    return kernels.Example(_Differ(), (x, y), ({0: size}, {0: size}))
