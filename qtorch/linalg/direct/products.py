"""What a product needs that has no scales and reads no random words, looked up once for its formats and shapes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from qcore.accumulate.convolution import ConvolutionForm, Form, form_of
from qcore.accumulate.law import Sums
from qcore.accumulate.product import Product
from qcore.formats.text import parse
from qtorch._rounding.paths.choice import round_tensor
from qtorch._rounding.plan import Plan, plan_for
from qtorch.linalg.tensor_names import (
    MatrixKernel,
    Names,
    convolution_product,
    has_chunk_kernel,
    matrix_kernel,
    matrix_product,
)


@lru_cache(maxsize=1024)
def product_of(text: str) -> Product:
    return parse(text)


@lru_cache(maxsize=1024)
def sums_for(form: Form, which: str, product: Product, first: Any, second: Any, other: Any) -> Any:
    return product.sums(first, second, form.contraction(which, first, second, other))


class Direct(NamedTuple):
    """What a product computes whose operands have no scales and read no random words.

    Attributes:
        plans: how the operands are rounded; None where they are not.
        kernel: of matrices that lie in operands without gaps; None where they do not, and for convolutions.
    """

    form: Any
    plans: tuple[Plan | None, Plan | None]
    sums: Sums
    kernel: MatrixKernel | None


@lru_cache(maxsize=4096)
def direct_product(
    form: str, which: str, product: str, first: Any, second: Any, other: Any, shape: Any
) -> Direct | None:
    """The same for a product that there is a kernel of; else None."""
    made, how = form_of(form), product_of(product)
    sums = sums_for(made, which, how, first, second, other)
    if how.stochastic or not has_chunk_kernel(sums) or any(one.scale or one.transform for one in how.operands):
        return None
    of_first, of_second = (
        None if one.number is None else plan_for(one.number, one.rounding, torch.float32, None, False)
        for one in how.operands
    )
    kernel = None
    if not isinstance(made, ConvolutionForm):
        operands = [torch.empty(one, device="meta") for one in (first, second)]
        kernel = matrix_kernel(operands, made.matrices(Names, which, operands[0], operands[1], other), sums, shape)
    return Direct(made, (of_first, of_second), sums, kernel)


def multiply_directly(
    direct: Direct, which: str, first: torch.Tensor, second: torch.Tensor, other: Any
) -> torch.Tensor | None:
    """The product of plain tensors; None where there is no compiler."""
    form, (of_first, of_second), sums, kernel = direct
    x = first if of_first is None else round_tensor(first, of_first, None, True)
    y = second if of_second is None else round_tensor(second, of_second, None, True)
    if kernel is not None and x.is_contiguous() and y.is_contiguous():
        return kernel.run(x, y)
    if isinstance(form, ConvolutionForm):
        return convolution_product(form, which, x, y, other, sums, None)
    left, right = form.matrices(Names, which, x, y, other)
    return matrix_product(left, right, sums, None)
