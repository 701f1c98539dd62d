"""Whether a tensor has numbers, and each at its place in memory."""

from __future__ import annotations

import torch


def check_dense(name: str, x: torch.Tensor) -> None:
    """Raises for sparse and nested tensors, which do not have one piece of memory with one shape."""
    if not torch.compiler.is_dynamo_compiling() and (x.layout is not torch.strided or x.is_nested):
        kind = "nested" if x.is_nested else x.layout
        raise TypeError(f"{name} is a {kind} tensor; allowed are dense ones, such as that of its values")


def listed(x: torch.Tensor) -> object:
    """A tensor's numbers in a `repr`; of one on the device meta, which has none, the device."""
    return "meta" if x.is_meta else x.tolist()
