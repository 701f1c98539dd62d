"""The least and the greatest element of a whole tensor, by a fused kernel where it is large.

torch looks for NaN at each element, and waits for each comparison before the next. Integers that are in the order of
the floats need neither: NaN are beyond the infinities on either side.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from qtorch import kernels
from qtorch.launch import KERNEL_LIMIT

_LARGE = 1 << 15  # elements, from which a kernel pays


def whole_extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The least and the greatest element of an ordinary tensor that has elements; both NaN where one is.

    Which zero is less is not said.
    """
    by_integers = x.dtype is torch.float32 and x.is_cpu and _LARGE <= x.numel() < KERNEL_LIMIT
    if by_integers and torch.ops.aten.is_non_overlapping_and_dense(x) and (kernel := _load()):
        low, high = (torch.empty((), dtype=torch.float32, device="cpu") for _ in range(2))
        kernel(x.numel(), x, low, high)
        return low, high
    return torch.aminmax(x)


class _Extremes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ranks = _in_order(x.view(torch.int32))
        low, high = ranks.amin(0), ranks.amax(0)
        nan = (low < _INFINITIES[0]) | (high > _INFINITIES[1])
        return tuple(torch.where(nan, torch.nan, _in_order(end).view(torch.float32)) for end in (low, high))


_INFINITIES = (-0x7F800001, 0x7F800000)  # their ranks


def _in_order(bits: torch.Tensor) -> torch.Tensor:
    """Ranks of float32 as integers with a sign, from their bits, whose magnitudes below 0 it turns around; or back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@cache
def _load() -> kernels.Kernel | None:
    return kernels.load_module("affine-extremes", (Path(__file__),), torch.device("cpu"), _example)


def _example() -> kernels.Example:
    x = torch.zeros(1 << 20, dtype=torch.float32, device="cpu")
    return kernels.Example(_Extremes(), (x,), ({0: torch.export.Dim("d0", min=2, max=KERNEL_LIMIT - 1)},))
