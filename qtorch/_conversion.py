"""Conversions at the borders of operators and laws, which compiled programs must not leave out.

Inductor computes with 16-bit numbers in float32, and fuses a conversion with the operations around it. A product would
read numbers that were never rounded to 16 bits, and what follows a product would read its float32 result:

    relu(x) in bfloat16 -> float32 -> product -> bfloat16 -> gelu

Compiled programs therefore hold these conversions as calls of an operator that Inductor cannot read, `qtorch::convert`.
Exported programs that run without qtorch hold views of integers in its place, see `_written`.
"""

from __future__ import annotations

from typing import Any

import torch

from qtorch._exported import is_wanted

HALVES = (torch.bfloat16, torch.float16)


def converted(x: torch.Tensor, dtype: torch.dtype, exported: bool = False) -> torch.Tensor:
    """x in another dtype, rounded to nearest; to and from 16 bits also where a compiler fuses the program.

    Args:
        x: the tensor.
        dtype: of the result.
        exported: whether programs of `torch.export` hold the operator; such a program cannot run without qtorch.
    """
    if x.dtype is dtype:
        return x  # as `to` does, but a traced program would have two nodes for it
    if not torch.compiler.is_compiling() or not (x.dtype in HALVES or dtype in HALVES):
        return x.to(dtype)
    if exported or not torch.compiler.is_exporting():
        return torch.ops.qtorch.convert(x, dtype)
    if is_wanted() or (x.requires_grad and torch.is_grad_enabled()):  # views of integers have no gradients
        return x.to(dtype)
    return _written(_written(x).to(dtype))


def result_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the result of a float layer whose numbers have a dtype: within `torch.autocast` that of autocast."""
    device = x.device.type
    automatic = device != "meta" and dtype is not torch.float64 and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if automatic else dtype


def kept_in_memory(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, which Inductor writes to memory because a strided view of it follows."""
    return x.as_strided(x.shape, x.stride())


def _written(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, whose 16-bit numbers AOTInductor writes to memory, as integers: floats it would go on computing.

    All operations are torch's, so that exported programs run without qtorch.
    """
    return kept_in_memory(x.view(torch.int16)).view(x.dtype) if x.dtype in HALVES else x


def run_convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`qtorch::convert`; the result is a copy, as torch demands of operators."""
    return x.to(dtype, copy=True)


def batch_convert(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
    return torch.ops.qtorch.convert(x, dtype), in_dims[0]


def keep_dtype(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.dtype = inputs[0].dtype


def convert_back(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """The gradient in the operand's dtype. It is an operator that autograd differentiates in turn."""
    return torch.ops.qtorch.convert(gradient, ctx.dtype), None
