"""Conversions at the borders of operators and laws, which compiled programs must not leave out.

Inductor computes with 16-bit numbers in float32, and fuses a conversion with the operations around it. A product would
read numbers that were never rounded to 16 bits, and what follows a product would read its float32 result:

    relu(x) in bfloat16 -> float32 -> product -> bfloat16 -> gelu

Compiled programs therefore hold these conversions as calls of an operator that Inductor cannot read, `qtorch::convert`.
"""

from __future__ import annotations

from typing import Any

import torch

HALVES = (torch.bfloat16, torch.float16)


def converted(x: torch.Tensor, dtype: torch.dtype, exported: bool = False) -> torch.Tensor:
    """x in another dtype, rounded to nearest; to and from 16 bits also where a compiler fuses the program.

    Args:
        x: the tensor.
        dtype: of the result.
        exported: whether programs of `torch.export` hold the operator; such a program cannot run without qtorch.
    """
    traced = torch.compiler.is_compiling() and (exported or not torch.compiler.is_exporting())
    if not traced or x.dtype is dtype or not (x.dtype in HALVES or dtype in HALVES):
        return x.to(dtype)
    return torch.ops.qtorch.convert(x, dtype)


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
