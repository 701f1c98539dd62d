"""What a product needs that has no scales and reads no random words, looked up once for its formats and shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from qcore.formats.text import parse
from qcore.linalg.convolution import ConvolutionForm, Form, form_of
from qcore.linalg.law import Sums
from qcore.linalg.product import Product
from qtorch._rounding.paths.choice import round_tensor
from qtorch._rounding.plan import Plan, plan_for
from qtorch.linalg.direct.program import Array, Native, NoKernelError, Slots, program
from qtorch.linalg.namespace import Float64, convolution_product, has_chunk_kernel, matrix_product, multiplication


@lru_cache(maxsize=1024)
def product_of(text: str) -> Product:
    return parse(text)


@lru_cache(maxsize=1024)
def sums_for(form: Form, which: str, product: Product, first: Any, second: Any, other: Any) -> Any:
    return product.sums(first, second, form.contraction(which, first, second, other))


class Direct(NamedTuple):
    """What a product computes whose operands have no scales and read no random words.

    Attributes:
        form: the form.
        plans: how the operands are rounded; None where they are not.
        sums: how products are summed.
        program: what puts the product of operands without gaps into the third of three slots; None where there is no
            program, and for convolutions.
    """

    form: Any
    plans: tuple[Plan | None, Plan | None]
    sums: Sums
    program: Callable[[Slots], None] | None


class Multiplied(NamedTuple):
    """Which product: see `qtorch.linalg.operator.multiply_tensors`; without a key and a state."""

    other: tuple[int, ...]
    shape: tuple[int, ...]
    form: str
    which: str
    product: str


@lru_cache(maxsize=4096)
def direct_product(how: Multiplied, first: tuple[int, ...], second: tuple[int, ...]) -> Direct | None:
    """What such a product of operands with these shapes computes; None if there is no kernel of it."""
    form, product = form_of(how.form), product_of(how.product)
    sums = sums_for(form, how.which, product, first, second, how.other)
    if product.stochastic or not has_chunk_kernel(sums) or any(one.scale or one.transform for one in product.operands):
        return None
    of_first, of_second = (
        None if one.number is None else plan_for(one.number, one.rounding, torch.float32, None, False)
        for one in product.operands
    )
    direct = Direct(form, (of_first, of_second), sums, None)
    try:
        steps = _steps(direct, how, (first, second), ("first", "second"), Array("result", how.shape, "float32"))
        return direct._replace(program=program(steps, {"first": 0, "second": 1, "result": 2}))
    except NoKernelError:
        return direct


def product_steps(
    how: Multiplied, shapes: Sequence[tuple[int, ...]], names: Sequence[str], result: Any
) -> list[Native]:
    """The steps of a product of arrays without gaps.

    Args:
        how: the product.
        shapes, names: of the operands.
        result: an `Array`, or what has its attributes.

    Raises:
        NoKernelError: if there are none.
    """
    direct = direct_product(how, *shapes)
    if direct is None:
        raise NoKernelError
    return _steps(direct, how, shapes, names, result)


def _steps(direct: Direct, how: Multiplied, shapes: Sequence[Any], names: Sequence[str], result: Any) -> list[Native]:
    """What rounds the operands and multiplies them."""
    if isinstance(direct.form, ConvolutionForm):
        raise NoKernelError
    steps, read = [], list(names)
    for index, (name, plan, shape) in enumerate(zip(names, direct.plans, shapes, strict=True)):
        if plan is not None:
            read[index] = f"{result.name} of {index}"
            steps.append(_rounding(plan, name, Array(read[index], shape, "float32")))
    operands = [torch.empty(shape, device="meta") for shape in shapes]
    matrices = direct.form.matrices(Float64, how.which, operands[0], operands[1], how.other)
    order = -1 if direct.form.is_swapped(how.which) else 1  # of the operands that the matrices are made of
    return [*steps, multiplication(operands[::order], matrices, direct.sums, read[::order], result)]


def _rounding(plan: Plan, name: str, result: Array) -> Native:
    """The step that rounds an array without gaps to a result."""
    shape = torch.Size(result.shape)
    if shape.numel() == 0:
        raise NoKernelError
    sizes, layout = ((shape.numel(),), "flat") if plan.elementwise else plan.matrices[shape]
    found = None if sizes is None else plan.kernels.step(layout)
    if sizes is None or found is None:
        raise NoKernelError
    function, constants = found
    return Native(function, np.array([*sizes, constants], np.int64), np.zeros(0), [name], [result], plan)


def multiply_directly(
    direct: Direct, how: Multiplied, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor | None:
    """The product of plain tensors; None where there is no compiler."""
    if direct.program is not None and first.is_contiguous() and second.is_contiguous():
        slots: Slots = [first, second, None]
        direct.program(slots)
        return slots[2]
    form, (of_first, of_second), sums, _ = direct
    x, y = first.detach(), second.detach()
    x = x if of_first is None else round_tensor(x, of_first, None, True)
    y = y if of_second is None else round_tensor(y, of_second, None, True)
    if isinstance(form, ConvolutionForm):
        return convolution_product(form, how.which, x, y, how.other, sums, None)
    left, right = form.matrices(Float64, how.which, x, y, how.other)
    return matrix_product(left, right, sums, None)
