"""Stochastic rounding in compiled programs: an operator that calls the kernel.

A program into which the law is traced has Threefry in it, once for every tensor that is rounded, and each takes a
compiler ten seconds. What fusion would save is little: random words take ten times as long as moving the numbers.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from qcore import Rounding
from qcore.random import Noise
from qtorch.cache import remember
from qtorch.dispatch import is_ordinary, round_tensor
from qtorch.launch import laid_out
from qtorch.plan import Plan, plan_for

_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(
    "round_stochastically(Tensor x, Tensor key, Tensor window, str spelling) -> Tensor",
    tags=(torch.Tag.flexible_layout,),
)


@remember
def _plan(dtype: torch.dtype, spelling: str) -> Plan:
    number, overflow = pickle.loads(bytes.fromhex(spelling))
    return plan_for(number, Rounding.STOCHASTIC, dtype, overflow, False)


def _round(x: torch.Tensor, key: torch.Tensor, window: torch.Tensor, spelling: str) -> torch.Tensor:
    """A key for each example, which are then x's first dimension, has two dimensions itself."""
    if key.dim() > 1:
        examples = [_round(example, own, window, spelling) for example, own in zip(x, key, strict=True)]
        return torch.stack(examples).contiguous()  # which they may not be together, if they are not each
    return laid_out(round_tensor(x, _plan(x.dtype, spelling), Noise(key, window), is_ordinary(x)), x)


def _shape(x: torch.Tensor, key: torch.Tensor, window: torch.Tensor, spelling: str) -> torch.Tensor:
    return torch.empty_like(x) if key.dim() == 1 else x.new_empty(x.shape)


def _batched(
    info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, key: torch.Tensor, window: torch.Tensor, spelling: str
) -> tuple[torch.Tensor, int]:
    tensors = []
    for tensor, batched in ((x, in_dims[0]), (key, in_dims[1])):
        moved = tensor.expand(info.batch_size, *tensor.shape) if batched is None else tensor.movedim(batched, 0)
        tensors.append(moved)
    x, key = tensors
    if key.dim() == 2:
        return torch.ops.qtorch.round_stochastically(x, key, window, spelling), 0
    flat = torch.ops.qtorch.round_stochastically(x.flatten(0, 1), key.flatten(0, 1), window, spelling)
    return flat.unflatten(0, x.shape[:2]), 0


_library.impl("round_stochastically", _round, "CompositeExplicitAutograd")
torch.library.register_fake("qtorch::round_stochastically", _shape, lib=_library)
torch.library.register_vmap("qtorch::round_stochastically", _batched, lib=_library)
