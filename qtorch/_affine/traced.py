"""Sizes in programs of `torch.jit.trace`, which keep what Python counts: other sizes raise.

Layers in integers count the elements of windows and groups in Python. So a program takes the sizes that it was traced
with, but for the first axis, the batch, while that stays the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def of_traced_sizes(x: torch.Tensor, first: bool) -> torch.Tensor:
    """x, whose sizes a program checks: also that of the first axis if `first` is True."""
    sizes = [-1 if axis == 0 and not first else int(size) for axis, size in enumerate(x.shape)]
    return x.expand(sizes).expand_as(x)  # each raises where sizes differ, unless that of its own tensor is 1


def keeps_first(function: Callable[..., Any], x: torch.Tensor, found: Any, *arguments: Any, **settings: Any) -> bool:
    """True if the first axis of what a function found, a tensor or several, grows as that of x, and no other axis does.

    It does in the same memory as before, if the axis has kept its size. Else the function is called for twice the size.
    """
    if x.dim() < 2:
        return False
    if isinstance(found, torch.Tensor) and found.dim() > 0 and found.data_ptr() == x.data_ptr():
        in_order = found.is_contiguous() and x.is_contiguous() and found.numel() == x.numel()
        if in_order and 1 < int(found.shape[0]) == int(x.shape[0]):  # one of size 1 may stand elsewhere as well
            return True
    try:
        probe = torch.empty((2 * int(x.shape[0]), *x.shape[1:]), dtype=x.dtype, device="meta")
        probed = function(probe, *arguments, **settings)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    pairs = [(found, probed)] if isinstance(found, torch.Tensor) else zip(found, probed, strict=True)
    return all(b.dim() > 0 and tuple(b.shape) == (2 * a.shape[0], *a.shape[1:]) for a, b in pairs)
