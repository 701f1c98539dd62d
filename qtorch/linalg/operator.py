"""One product of two tensors: a function for eager programs, and an operator for compiled and transformed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from qcore import Number
from qcore.linalg.convolution import ConvolutionForm, Form, form_of
from qcore.linalg.forms import FORWARD, GRAD_A, GRAD_B
from qcore.linalg.law import Sums, batch_shape, multiply
from qcore.linalg.operands.matrices import Matrices, matrices, rounded_tensors
from qcore.linalg.operands.operand import Operand
from qcore.linalg.operands.scaling import of_both, prepared, rescaled
from qcore.linalg.product import FIRST, ROLES, ROWS, SECOND, Product
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import fold_in
from qtorch._rounding.paths.choice import are_plain_tensors, is_plain_tensor
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import unseen_by_modes
from qtorch.linalg.delayed import gather_product, given_scales
from qtorch.linalg.direct.products import Multiplied, direct_product, multiply_directly, product_of, sums_for
from qtorch.linalg.namespace import (
    Float64,
    convolution_product,
    matrix_product,
)
from qtorch.linalg.sharded import multiply_shards

BLOCK = 1 << 21  # numbers of which there are float64 copies at a time
_SIDE = 1024  # rows and columns of a result

_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(
    "product(Tensor first, Tensor second, Tensor? key, Tensor? state, SymInt[] other, SymInt[] shape, str form, "
    "str which, str product) -> Tensor"
)
_library.define(
    "gather(Tensor state, Tensor scales, Tensor a, Tensor b, Tensor gradient, str forward, str grad_a, str grad_b) "
    "-> Tensor",
    tags=(torch.Tag.cudagraph_unsafe,),  # it leaves the state to the end of the backward pass
)


# Is told of the kind and role of a site (see `qcore.insight.Site`), the tensor before and after, and the format.
Observer = Callable[[str, str, torch.Tensor, torch.Tensor, Number], None]
_OPERANDS = {
    FORWARD: {FIRST: "input", SECOND: "weight"},
    GRAD_A: {FIRST: "grad_input.gradient", SECOND: "grad_input.weight"},
    GRAD_B: {FIRST: "grad_weight.gradient", SECOND: "grad_weight.input"},
}
_GRADIENTS = {FORWARD: "", GRAD_A: "grad_input", GRAD_B: "grad_weight"}


# The observer of the products that are computed now; None unless a model is watched.
OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Products within, and those of their gradients, whenever these are computed, are told to an observer."""
    token = OBSERVER.set(observer)
    try:
        yield
    finally:
        OBSERVER.reset(token)


def multiply_tensors(
    first: torch.Tensor,
    second: torch.Tensor,
    key: torch.Tensor | None,
    state: torch.Tensor | None,
    other: Sequence[int],
    shape: Sequence[int],
    form: str,
    which: str,
    product: str,
) -> torch.Tensor:
    """One of a form's products, as a float32 tensor of a shape.

    Args:
        first, second, other, which: see `qcore.linalg.forms.MatrixForm.matrices`.
        key: int32 tensor of two words, of the forward product; None where nothing is stochastic.
        state: of delayed scales, of which the first column counts; None where there are none.
        shape: of the result.
        form, product: the form and the `Product` as text.
    """
    if are_plain_tensors((first, second)):
        return _multiply_plain(first, second, key, state, other, shape, form, which, product)
    if is_sharded(first, second):
        return _multiply_shards(first, second, key, other, shape, form, which, product)
    return torch.ops.qtorch.product(first, second, key, state, other, shape, form, which, product)


def _multiply(first: torch.Tensor, second: torch.Tensor, *others: Any) -> torch.Tensor:
    """The operator."""
    multiply_them = _multiply_plain if are_plain_tensors((first, second)) else _multiply_by_operations
    return multiply_them(first, second, *others)


def _multiply_plain(
    first: torch.Tensor,
    second: torch.Tensor,
    key: Any,
    state: Any,
    other: Any,
    shape: Any,
    form: str,
    which: str,
    product: str,
) -> torch.Tensor:
    if OBSERVER.get() is None and first.is_cpu:
        how = Multiplied(tuple(other), tuple(shape), form, which, product)
        direct = direct_product(how, first.shape, second.shape)
        found = direct and multiply_directly(direct, how, first, second)
        if found is not None:
            return found if found.shape == shape else found.reshape(shape)
    return _multiply_by_operations(first, second, key, state, other, shape, form, which, product)


def _multiply_by_operations(
    first: torch.Tensor,
    second: torch.Tensor,
    key: Any,
    state: Any,
    other: Any,
    shape: Any,
    form: str,
    which: str,
    product: str,
) -> torch.Tensor:
    with unseen_by_modes():  # a mode that lowers functions would find these products as well
        made, how = form_of(form), product_of(product)
        if key is not None and which != FORWARD:
            key = fold_in(key, ROLES[which], True)
        multiply_rounded = _with_operands(made, which, how, (first.detach(), second.detach()), state, tuple(other), key)
        sums = sums_for(made, which, how, tuple(first.shape), tuple(second.shape), tuple(other))
        result = multiply_rounded(key, sums).reshape(shape)
        observer = OBSERVER.get()
        if observer is not None and how.unrounded != how:
            sums = sums_for(made, which, how.unrounded, tuple(first.shape), tuple(second.shape), tuple(other))
            wide = multiply_rounded(None, sums).reshape(shape)
            observer("accumulator", _GRADIENTS[which], wide, result, how.accumulator.number)
        return result


def _with_operands(
    form: Form, which: str, product: Product, tensors: tuple[Any, Any], state: Any, other: Any, key: Any
) -> Callable[[Any, Sums], torch.Tensor]:
    """Rounds both operands, and returns what multiplies them with a key and an accumulator."""
    given = given_scales(product.operands, ROWS[which], state)
    round_ = partial(_rounded, key, which)
    if product.as_matrices or not isinstance(form, ConvolutionForm):
        return partial(_multiply_matrices, matrices(Float64, form, which, product, tensors, other, round_, given))
    pair, inverses = rounded_tensors(product, tensors, round_, given)
    factor = of_both(Float64, *inverses)

    def multiply_rounded(key: Any, sums: Sums) -> torch.Tensor:
        found = convolution_product(form, which, pair[0], pair[1], other, sums, key)
        if found is not None:
            return found if factor is None else _one_nan(rescaled(Float64, found, factor).to(torch.float32))
        return _multiply_matrices(
            Matrices(*form.matrices(Float64, which, pair[0], pair[1], other), None, factor), key, sums
        )

    return multiply_rounded


def _multiply_matrices(found: Matrices, key: Any, sums: Sums) -> torch.Tensor:
    """The product of matrices that are rounded."""
    left, right, scales, factor = found
    key = None if key is None else key.to(left.device)
    names = Float64(key, sums.narrow)
    result = matrix_product(left, right, sums, key) if scales is None else None
    if result is not None:
        return result if factor is None else _one_nan(rescaled(names, result, factor).to(torch.float32))
    result = left.new_empty((*batch_shape(left, right), left.shape[-2], right.shape[-1]))
    pair = (left, right) if scales is None else (left, right, *scales)
    for part, a, b, *of_part in _blocks(result, pair, sums.accumulator.stochastic):
        sum_ = multiply(names, a, b, sums, (of_part[0], of_part[1]) if of_part else None)
        part.copy_(sum_ if factor is None else rescaled(names, sum_, factor))
    return _one_nan(result)


def _one_nan(x: torch.Tensor) -> torch.Tensor:
    """x with the same NaN for all."""
    return torch.nan_to_num_(x, nan=torch.nan, posinf=torch.inf, neginf=-torch.inf)


def _blocks(result: torch.Tensor, operands: Sequence[Any], whole: bool) -> Iterator[tuple[Any, ...]]:
    """Parts of a product and of its operands, so small that float64 copies take little memory; or the whole.

    Operands are a left and a right matrix, or two such pairs, of which one or the other may be None.
    """
    a, b = operands[:2]
    if whole or max(result.numel(), a.numel(), b.numel()) <= BLOCK:
        yield result, *operands
    elif result.dim() > 2:
        for index, part in enumerate(result):
            parts = [x if x is None or x.dim() < result.dim() else x[min(index, len(x) - 1)] for x in operands]
            yield from _blocks(part, parts, whole)
    else:
        length = min(max(BLOCK // a.shape[1], 64), _SIDE)
        for top in range(0, a.shape[0], length):
            for left in range(0, b.shape[1], length):
                rows, columns = slice(top, top + length), slice(left, left + length)
                places = (rows, (slice(None), columns)) * 2
                yield (
                    result[rows, columns],
                    *(None if x is None else x[place] for x, place in zip(operands, places, strict=False)),
                )


def _multiply_shards(
    first: torch.Tensor, second: torch.Tensor, key: Any, other: Any, shape: Any, form: str, which: str, product: str
) -> torch.Tensor:
    """The same of DTensors; stochastic accumulators need the whole, as their words count its elements."""
    made, how = form_of(form), product_of(product)
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which], True)
    pairs = zip((first, second), how.operands, (FIRST, SECOND), strict=True)
    operands = [_rounded(key, which, x.detach(), operand, None, role)[0] for x, operand, role in pairs]
    sums = sums_for(made, which, how, tuple(first.shape), tuple(second.shape), tuple(other))
    whole = sums.accumulator.stochastic
    kept = ({}, {}) if whole else made.kept_axes(which, first.dim(), second.dim(), len(other))

    def multiply_parts(x: torch.Tensor, y: torch.Tensor, part: Any) -> torch.Tensor:
        others = tuple(y.shape) if which == FORWARD else tuple(part)
        left, right = made.matrices(Float64, which, x, y, others)
        return _multiply_matrices(Matrices(left, right, None, None), key, sums).reshape(part)

    return multiply_shards(operands[0], operands[1], shape, kept, multiply_parts)


def _rounded(
    key: torch.Tensor | None, which: str, x: torch.Tensor, operand: Operand, given: Any, role: int
) -> tuple[torch.Tensor, Any]:
    """An operand rounded, and r of its scales."""
    x, inverse = prepared(Float64, x, operand, given)
    if operand.number is None:
        return x, inverse
    key = fold_in(key, role, True) if operand.stochastic and key is not None else None
    y = quantize(x, operand.number, operand.rounding, key=key)
    observer = OBSERVER.get()
    if observer is not None and is_plain_tensor(x):
        observer("operand", _OPERANDS[which][role], x, y, operand.number)
    return y, inverse


def _shape(first: torch.Tensor, second: torch.Tensor, key: Any, state: Any, other: Any, shape: Any, *text: str) -> Any:
    return first.new_empty(shape)


def _batched(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, int]:
    """Under vmap each example is a product of its own."""
    rest = arguments[4:]
    tensors = [
        [x] * info.batch_size if dim is None else x.unbind(dim)
        for x, dim in zip(arguments[:4], in_dims[:4], strict=True)
    ]
    return torch.stack([torch.ops.qtorch.product(*each, *rest) for each in zip(*tensors, strict=True)]), 0


_library.impl("product", _multiply, "CompositeExplicitAutograd")
_library.impl("gather", gather_product, "CompositeExplicitAutograd")
torch.library.register_fake("qtorch::gather", lambda state, scales, *others: torch.empty_like(scales), lib=_library)
torch.library.register_fake("qtorch::product", _shape, lib=_library)
torch.library.register_vmap("qtorch::product", _batched, lib=_library)
