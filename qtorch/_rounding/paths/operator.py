"""Rounding in programs for `torch.compile`: an operator, which calls the kernels that eager programs call.

If the law were traced into such a program, compilers would take seconds for each Threefry, and on the CPU Inductor
takes bits of vectors by way of memory. What fusion would save is a pass over a tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from qcore.random.threefry import Noise
from qtorch._rounding.cache import cached
from qtorch._rounding.paths import inductor
from qtorch._rounding.paths.choice import is_plain_tensor, round_tensor
from qtorch._rounding.paths.cpu import with_strides_of
from qtorch._rounding.plan import Plan, plan_for

_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(
    "round(Tensor x, Tensor? key, Tensor? window, str number, str rounding, str overflow, str law) -> Tensor",
    tags=(torch.Tag.flexible_layout,),
)


@cached
def _plan(dtype: torch.dtype, number: str, rounding: str, overflow: str, law: str) -> Plan:
    return plan_for(number, rounding, dtype, overflow or None, False)


def _round(x: torch.Tensor, key: torch.Tensor | None, window: torch.Tensor | None, *text: str) -> torch.Tensor:
    """A key for each example, which are then x's first dimension, has two dimensions itself."""
    if key is None or window is None:
        noise = None
    elif key.dim() > 1:
        examples = [_round(example, own, window, *text) for example, own in zip(x, key, strict=True)]
        return torch.stack(examples).contiguous()  # which they may not be together, if they are not each
    else:
        noise = Noise(key, window)
    return with_strides_of(x, round_tensor(x, _plan(x.dtype, *text), noise, is_plain_tensor(x)))


def _shape(x: torch.Tensor, key: torch.Tensor | None, window: torch.Tensor | None, *text: str) -> torch.Tensor:
    inductor.register()
    return torch.empty_like(x) if key is None or key.dim() == 1 else x.new_empty(x.shape)


def _batched(
    info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, key: torch.Tensor | None, window: Any, *text: str
) -> tuple[torch.Tensor, int]:
    """Under vmap an example's random words are those of its own indices, and blocks are its own."""
    x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    if key is None:
        return torch.stack([torch.ops.qtorch.round(example, None, None, *text) for example in x]), 0
    key = key.expand(info.batch_size, *key.shape) if in_dims[1] is None else key.movedim(in_dims[1], 0)
    if key.dim() == 2:
        return torch.ops.qtorch.round(x, key, window, *text), 0
    flat = torch.ops.qtorch.round(x.flatten(0, 1), key.flatten(0, 1), window, *text)
    return flat.unflatten(0, x.shape[:2]), 0


_library.impl("round", _round, "CompositeExplicitAutograd")
torch.library.register_fake("qtorch::round", _shape, lib=_library)
torch.library.register_vmap("qtorch::round", _batched, lib=_library)
