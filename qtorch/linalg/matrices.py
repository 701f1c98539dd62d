"""Products of matrices with a defined accumulator, and their gradients."""

from __future__ import annotations

import torch

from qcore.linalg.accumulator import AccumulatorLike
from qcore.linalg.geometry import MatrixGeometry, check_batches
from qcore.linalg.product import Operands, ProductLike
from qtorch._rounding.keys import Key
from qtorch.linalg.call import add_bias, check_operand, differentiable_product, in_float32, prepare

MATMUL, LINEAR = MatrixGeometry(), MatrixGeometry(transposed=True)


@in_float32
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    grad_a: ProductLike = None,
    grad_b: ProductLike = None,
    key: Key = None,
    scaling: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of two matrices, or of batches of them, with a defined accumulator; see `qcore.linalg.matmul`.

    With c it is the sum a b + c, whose accumulators start at c. The gradient of c is that of the result.
    The gradients are two products of their own: the gradient of the result times b transposed, and a transposed times
    the gradient of the result. If b is a matrix, the second sums over the rows of all leading dimensions. Rounding
    passes gradients straight through.

    Args:
        a: float32 tensor of shape (..., M, K).
        b: float32 tensor of shape (K, N), or (..., K, N) with a's leading dimensions.
        c: float32 tensor of shape (..., M, N), at which the accumulators start; None is +0.
        operands: the roundings of a and b: a pair of formats, their texts, `Operand`s or None.
        accumulator: an `Accumulator` or its text; None is the exact sum, rounded once to float32.
        grad_a, grad_b: the products of the gradients of a and b: each a `Product` (or its text), whose first operand is
            the gradient of the result. None takes the other operand as the forward product rounds it, the unrounded
            gradient, and the same accumulator.
        key: for stochastic rounding, as for `qtorch.quantize`; None draws one from torch's default generator.
        scaling: the state of delayed scales, a float32 tensor that starts as `first_scaling(history)`. The products of
            the gradients write the next state into it, in place.

    Returns:
        A float32 tensor of shape (..., M, N).

    Raises:
        ValueError: if shapes do not fit, or an argument is out of range.

    Example:
        >>> from qtorch import Accumulator
        >>> a, b = torch.tensor([[1.0, 2.0**-12]]), torch.ones(2, 1)
        >>> matmul(a, b), matmul(a, b, accumulator=Accumulator("float(6,9)", chunk=1))
        (tensor([[1.0002]]), tensor([[1.]]))
    """
    call = prepare(MATMUL, a, b, operands, accumulator, grad_a, grad_b, ("grad_a", "grad_b"), key, scaling, c)
    return differentiable_product(a, b, *call, c)


@in_float32
def bmm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    grad_a: ProductLike = None,
    grad_b: ProductLike = None,
    key: Key = None,
    scaling: torch.Tensor | None = None,
) -> torch.Tensor:
    """`matmul` of tensors of shapes (batch, M, K) and (batch, K, N).

    Args:
        a: float32 tensor of shape (batch, M, K).
        b: float32 tensor of shape (batch, K, N).
        c: float32 tensor of shape (batch, M, N) or None; all others are as for `matmul`.

    Returns:
        A float32 tensor of shape (batch, M, N).

    Raises:
        TypeError, ValueError: as `matmul` does.

    Example:
        >>> bmm(torch.ones(2, 1, 3), torch.ones(2, 3, 1)).flatten()
        tensor([3., 3.])
    """
    check_operand("a", a)
    check_operand("b", b)
    check_batches(tuple(a.shape), tuple(b.shape))
    call = prepare(MATMUL, a, b, operands, accumulator, grad_a, grad_b, ("grad_a", "grad_b"), key, scaling, c)
    return differentiable_product(a, b, *call, c)


@in_float32
def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    c: torch.Tensor | None = None,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    grad_input: ProductLike = None,
    grad_weight: ProductLike = None,
    key: Key = None,
    scaling: torch.Tensor | None = None,
) -> torch.Tensor:
    """input @ weight.T + bias with a defined accumulator.

    The bias is added in float32 after the product. Its gradient is the sum of the rows of the gradient: float64
    additions in ascending order, rounded once to float32.

    Args:
        input: float32 tensor of shape (..., in).
        weight: float32 tensor of shape (out, in), or (*batch, out, in) with input's leading dimensions (*batch, M).
        bias: float32 tensor of shape (out,), or None.
        c: float32 tensor of the result's shape, at which the accumulators start; None is +0.
        operands, accumulator, key, scaling: as for `matmul`.
        grad_input, grad_weight: the products of these gradients, as grad_a and grad_b of `matmul`.

    Returns:
        A float32 tensor of shape (..., out).

    Raises:
        ValueError: if shapes do not fit, or an argument is out of range.

    Example:
        >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]]), operands=("e4m3fn", "e4m3fn"))
        tensor([[1.]])
    """
    names = ("grad_input", "grad_weight")
    call = prepare(LINEAR, input, weight, operands, accumulator, grad_input, grad_weight, names, key, scaling, c)
    y = differentiable_product(input, weight, *call, c)
    return add_bias(y, bias, y.shape[-1], -1)
