"""One product of two tensors: a function for eager programs, and an operator for compiled and transformed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from qcore import Accumulator, Number
from qcore.accumulate.convolution import Form, form_of
from qcore.accumulate.forms import FORWARD, GRAD_A, GRAD_B
from qcore.accumulate.law import Sums, batch_shape, multiply
from qcore.accumulate.product import FIRST, ROLES, SECOND, Operand, Product
from qcore.formats.text import parse
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import fold_in
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.sharded import is_sharded
from qtorch.linalg.sharded import multiply_shards
from qtorch.linalg.tensor_names import Names

BLOCK = 1 << 21  # numbers of which there are float64 copies at a time
_SIDE = 1024  # rows and columns of a result

_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(
    "product(Tensor first, Tensor second, Tensor? key, SymInt[] other, SymInt[] shape, str form, str which, "
    "str product) -> Tensor"
)


# Is told of the kind and role of a site (see `qcore.insight.Site`), the tensor before and after, and the format.
Observer = Callable[[str, str, torch.Tensor, torch.Tensor, Number], None]
_OPERANDS = {FORWARD: ("input", "weight"), GRAD_A: ("gradient", "weight"), GRAD_B: ("gradient", "input")}
_GRADIENTS = {FORWARD: "", GRAD_A: "grad_input", GRAD_B: "grad_weight"}


class Observation:
    """The observer of the products that are computed now; None unless a model is watched."""

    observer: Observer | None = None


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Products within, and those of their gradients, whenever these are computed, are told to an observer."""
    before, Observation.observer = Observation.observer, observer
    try:
        yield
    finally:
        Observation.observer = before


@lru_cache(maxsize=1024)
def product_of(text: str) -> Product:
    return parse(text)


@lru_cache(maxsize=1024)
def _sums(form: Form, which: str, product: Product, first: Any, second: Any, other: Any) -> Any:
    return product.sums(first, second, form.contraction(which, first, second, other))


def multiply_tensors(
    first: torch.Tensor,
    second: torch.Tensor,
    key: torch.Tensor | None,
    other: Sequence[int],
    shape: Sequence[int],
    form: str,
    which: str,
    product: str,
) -> torch.Tensor:
    """One of a form's products, as a float32 tensor of a shape.

    Args:
        first, second, other, which: see `qcore.accumulate.forms.MatrixForm.matrices`.
        key: int32 tensor of two words, of the forward product; None where nothing is stochastic.
        shape: of the result.
        form, product: the form and the `Product` as text.
    """
    if is_sharded(first, second):
        return _multiply_shards(first, second, key, other, shape, form, which, product)
    if torch.compiler.is_compiling() or not (is_plain_tensor(first) and is_plain_tensor(second)):
        return torch.ops.qtorch.product(first, second, key, other, shape, form, which, product)
    return _multiply(first, second, key, other, shape, form, which, product)


def _multiply(
    first: torch.Tensor, second: torch.Tensor, key: Any, other: Any, shape: Any, form: str, which: str, product: str
) -> torch.Tensor:
    made, how = form_of(form), product_of(product)
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which], True)
    operands = _rounded_operands(first, second, how, key)
    shapes = tuple(first.shape), tuple(second.shape), tuple(other)
    result = _multiply_matrices(
        operands[0], operands[1], key, tuple(other), shape, made, which, _sums(made, which, how, *shapes)
    )
    if Observation.observer is not None:
        for x, y, operand, name in zip((first, second), operands, how.operands, _OPERANDS[which], strict=True):
            if operand.number is not None:
                role = ".".join(part for part in (_GRADIENTS[which], name) if part)
                Observation.observer("operand", role, x.detach(), y, operand.number)
        exact = replace(how, accumulator=Accumulator())
        if exact != how:
            sums = _sums(made, which, exact, *shapes)
            wide = _multiply_matrices(operands[0], operands[1], None, tuple(other), shape, made, which, sums)
            Observation.observer("accumulator", _GRADIENTS[which], wide, result, how.accumulator.number)
    return result


def _multiply_matrices(
    first: torch.Tensor, second: torch.Tensor, key: Any, other: Any, shape: Any, form: Form, which: str, sums: Sums
) -> torch.Tensor:
    """The product of operands that are rounded."""
    left, right = form.matrices(Names, which, first, second, other)
    names = Names(None if key is None else key.to(first.device), sums.narrow)
    result = left.new_empty((*batch_shape(left, right), left.shape[-2], right.shape[-1]))
    for part, a, b in _blocks(result, left, right, sums.accumulator.stochastic):
        part.copy_(multiply(names, a, b, sums))
    torch.nan_to_num_(result, nan=torch.nan, posinf=torch.inf, neginf=-torch.inf)  # all NaN are one
    return result.reshape(shape)


def _blocks(
    result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, whole: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Parts of a product and of its operands, so small that float64 copies take little memory; or the whole."""
    if whole or max(result.numel(), a.numel(), b.numel()) <= BLOCK:
        yield result, a, b
    elif result.dim() > 2:
        for index, part in enumerate(result):
            parts = (x if x.dim() < result.dim() else x[min(index, len(x) - 1)] for x in (a, b))
            yield from _blocks(part, *parts, whole)
    else:
        length = min(max(BLOCK // a.shape[1], 64), _SIDE)
        for top in range(0, a.shape[0], length):
            for left in range(0, b.shape[1], length):
                rows, columns = slice(top, top + length), slice(left, left + length)
                yield result[rows, columns], a[rows], b[:, columns]


def _multiply_shards(
    first: torch.Tensor, second: torch.Tensor, key: Any, other: Any, shape: Any, form: str, which: str, product: str
) -> torch.Tensor:
    """The same of DTensors; stochastic accumulators need the whole, as their words count its elements."""
    made, how = form_of(form), product_of(product)
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which], True)
    operands = _rounded_operands(first, second, how, key)
    sums = _sums(made, which, how, tuple(first.shape), tuple(second.shape), tuple(other))
    whole = sums.accumulator.stochastic
    kept = ({}, {}) if whole else made.kept_axes(which, first.dim(), second.dim(), len(other))

    def multiply_parts(x: torch.Tensor, y: torch.Tensor, part: Any) -> torch.Tensor:
        others = tuple(y.shape) if which == FORWARD else tuple(part)
        return _multiply_matrices(x, y, key, others, part, made, which, sums)

    return multiply_shards(operands[0], operands[1], shape, kept, multiply_parts)


def _rounded_operands(first: torch.Tensor, second: torch.Tensor, how: Product, key: Any) -> list[torch.Tensor]:
    pairs = zip((first, second), how.operands, (FIRST, SECOND), strict=True)
    return [_rounded(x.detach(), operand, key, role) for x, operand, role in pairs]


def _rounded(x: torch.Tensor, operand: Operand, key: torch.Tensor | None, role: int) -> torch.Tensor:
    if operand.number is None:
        return x
    key = fold_in(key, role, True) if operand.stochastic and key is not None else None
    return quantize(x, operand.number, operand.rounding, key=key)


def _shape(first: torch.Tensor, second: torch.Tensor, key: Any, other: Any, shape: Any, *text: str) -> torch.Tensor:
    return first.new_empty(shape)


def _batched(info: Any, in_dims: tuple[Any, ...], first: Any, second: Any, key: Any, *rest: Any) -> tuple[Any, int]:
    """Under vmap each example is a product of its own."""
    tensors = [
        [x] * info.batch_size if dim is None else x.unbind(dim)
        for x, dim in zip((first, second, key), in_dims[:3], strict=True)
    ]
    return torch.stack([torch.ops.qtorch.product(*each, *rest) for each in zip(*tensors, strict=True)]), 0


_library.impl("product", _multiply, "CompositeExplicitAutograd")
torch.library.register_fake("qtorch::product", _shape, lib=_library)
torch.library.register_vmap("qtorch::product", _batched, lib=_library)
