"""One product of two tensors: a function for eager programs, and an operator for compiled and transformed ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from qcore.accumulate.convolution import Form, form_of
from qcore.accumulate.forms import FORWARD
from qcore.accumulate.law import multiply
from qcore.accumulate.product import FIRST, ROLES, SECOND, Operand, Product
from qcore.formats.text import parse
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import fold_in
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch.linalg.tensor_names import Names

_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(
    "product(Tensor first, Tensor second, Tensor? key, SymInt[] other, SymInt[] shape, str form, str which, "
    "str product) -> Tensor"
)


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
    if torch.compiler.is_compiling() or not (is_plain_tensor(first) and is_plain_tensor(second)):
        return torch.ops.qtorch.product(first, second, key, other, shape, form, which, product)
    return _multiply(first, second, key, other, shape, form, which, product)


def _multiply(
    first: torch.Tensor, second: torch.Tensor, key: Any, other: Any, shape: Any, form: str, which: str, product: str
) -> torch.Tensor:
    made, how = form_of(form), product_of(product)
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which], True)
    operands = [
        _rounded(x.detach(), operand, key, role)
        for x, operand, role in zip((first, second), how.operands, (FIRST, SECOND), strict=True)
    ]
    other = tuple(other)
    left, right = made.matrices(Names, which, operands[0], operands[1], other)
    sums = _sums(made, which, how, tuple(first.shape), tuple(second.shape), other)
    names = Names(None if key is None else key.to(first.device), sums.narrow)
    found = multiply(names, left, right, sums)
    result = found.to(torch.float32).reshape(shape)
    return result.masked_fill_(result != result, torch.nan)


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
