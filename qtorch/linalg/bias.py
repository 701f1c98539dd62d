"""The sum of a product and a bias, and the bias's gradient."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from qcore.linalg.forms import GRAD_B, MatrixForm, check_bias
from qcore.linalg.product import Product
from qtorch._rounding.dense import check_dense
from qtorch._rounding.gradients import refuse_recording
from qtorch._rounding.paths.choice import check_device
from qtorch.linalg.call import Shapes, gradient_product

_MATMUL, _SUM = MatrixForm().text, Product().text


class _AddBias(torch.autograd.Function):
    """(x, bias, the dimension of outputs) -> their sum."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, bias: torch.Tensor, dim: int) -> torch.Tensor:
        return x + bias.reshape(-1, *(1,) * (-1 - dim))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.dim, ctx.shape = inputs[2], output.shape

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_recording(gradient)
        rows = gradient.movedim(ctx.dim, -1)
        rows = rows.reshape(prod(rows.shape[:-1]), rows.shape[-1])
        ones = torch.ones_like(rows[:, :1])
        shapes = Shapes(ones.shape, (1, rows.shape[1]), rows.shape)
        return gradient, gradient_product(rows, ones, shapes, GRAD_B, _MATMUL, _SUM)[0], None


class _WithTangent(_AddBias):
    @staticmethod
    def jvp(ctx: Any, of_x: Any, of_bias: Any, *_: Any) -> torch.Tensor:  # type: ignore[override]
        if of_bias is None:
            return of_x.clone()  # which the result may be changed with, in place
        of_bias = of_bias.reshape(-1, *(1,) * (-1 - ctx.dim))
        return of_bias.expand(ctx.shape).clone() if of_x is None else of_x + of_bias


def add_bias(x: torch.Tensor, bias: torch.Tensor | None, outputs: int, dim: int) -> torch.Tensor:
    """x + bias in float32, along a dimension counted from the end.

    The bias's gradient is the float64 sum of the gradient's other elements, in ascending order, rounded to float32.
    """
    if bias is None:
        return x
    if not isinstance(bias, torch.Tensor):
        raise TypeError(f"bias is a {type(bias).__name__}; allowed are a torch.Tensor of float32 and None")
    check_dense("bias", bias)
    check_device("bias", bias, x.device, "input")
    check_bias(tuple(bias.shape), str(bias.dtype).removeprefix("torch."), outputs)
    apply = _AddBias.apply if torch.compiler.is_dynamo_compiling() else _WithTangent.apply
    return apply(x, bias, dim)
