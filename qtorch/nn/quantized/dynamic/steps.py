"""Recurrent layers in one direction: in one call of C, as an operator of compiled programs, or by the law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from qcore.affine import AffineInteger, QParams
from qcore.affine.arithmetic import recurrent
from qtorch._affine.integer.dynamic import DynamicKernel, kernel_of
from qtorch._affine.namespace import Names
from qtorch._affine.tensor import QTensor
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch.nn.quantized.common.weights import QuantizedWeight
from qtorch.nn.quantized.dynamic.product import multiplied

State = Sequence[torch.Tensor]  # the hidden state, and of an LSTM the cell state
Product = Callable[[torch.Tensor], torch.Tensor]
_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(
    "recurrent(Tensor x, SymInt[] sizes, Tensor[] state, Tensor[] of_input, Tensor[] of_hidden, Tensor[] projection, "
    "int[] forms, str[] roundings, str law, bool reverse) -> Tensor[]",
)


def _lstm(of_input: torch.Tensor, of_hidden: torch.Tensor, state: State) -> State:
    return recurrent.lstm_cell(Names, of_input + of_hidden, state[1])


def _gru(of_input: torch.Tensor, of_hidden: torch.Tensor, state: State) -> State:
    return (recurrent.gru_cell(Names, of_input, of_hidden, state[0]),)


LAWS = {"lstm": _lstm, "gru": _gru}


def run_steps(
    law: str,
    products: tuple[Any, Any],
    x: torch.Tensor,
    sizes: Sequence[int],
    state: State,
    reverse: bool,
    projection: Any = None,
) -> tuple[torch.Tensor, State]:
    """The results of all steps, and the states after the last one.

    Args:
        law: a key of `LAWS`.
        products: those with the input and with the hidden states, `DynamicProduct`s.
        x: the sequences' rows, those of one step after those of another.
        sizes: how many sequences, the first ones, have each step.
        state: tensors of shape (batch, size).
        reverse: whether the steps are taken from the last to the first.
        projection: the `DynamicProduct` of an LSTM's hidden states, or None.
    """
    of_input, of_hidden = products
    every = [*products, *([] if projection is None else [projection])]
    roundings = [one.rounding_text for one in every]
    if _is_traced(x) and None not in roundings and not _is_differentiated(x, state, roundings):
        tensors = [*(_tensors(one) for one in every), *([[]] if projection is None else [])]
        forms = [number for one in every for number in _forms(one)]
        arguments = x.detach(), list(sizes), list(state), *tensors, forms, roundings, law, reverse
        made = torch.ops.qtorch.recurrent(*arguments)
        return made[0], made[1:]
    return _run(law, of_input, of_hidden, of_hidden.kernel(), x, sizes, state, reverse, projection)


def _is_traced(x: torch.Tensor) -> bool:
    """True in a program for `torch.compile`, and of tensors that `torch.export` traces without it."""
    return torch.compiler.is_dynamo_compiling() or (torch.compiler.is_exporting() and not is_plain_tensor(x))


def _is_differentiated(x: torch.Tensor, state: State, roundings: list[Any]) -> bool:
    """True if gradients are asked for; products of integers have none for x."""
    sources = [*state, *([x] if any(roundings) else [])]
    return torch.is_grad_enabled() and any(one.requires_grad for one in sources)


def _run(
    law: str,
    of_input: Product,
    of_hidden: Product,
    kernel: DynamicKernel | None,
    x: torch.Tensor,
    sizes: Sequence[int],
    state: State,
    reverse: bool,
    projection: Product | None,
) -> tuple[torch.Tensor, State]:
    """All steps at once by the kernel, which has no projections, or one after the other by the law."""
    of_all = of_input(x)
    made = None if kernel is None or projection is not None else kernel.steps(law, of_all, sizes, state, reverse)
    if made is not None:
        return made
    outputs, rows = [], of_all.split(list(sizes))
    for step in range(len(sizes))[:: -1 if reverse else 1]:
        count = sizes[step]
        first = [one[:count] for one in state]
        new = LAWS[law](rows[step], of_hidden(first[0]), first)
        if projection is not None:
            new = (projection(new[0]), *new[1:])
        # The states of sequences that are over, or come later, stay.
        state = new if count == len(state[0]) else [torch.cat((a, b[count:])) for a, b in zip(new, state, strict=True)]
        outputs.append(new[0])
    return torch.cat(outputs[:: -1 if reverse else 1]), state


def _tensors(product: Any) -> list[torch.Tensor]:
    """The weight's integers, scale and zero point, or its numbers, and the bias where there is one."""
    weight: Any = product.weight if isinstance(product.weight, torch.Tensor) else product.weight()
    integers = isinstance(weight, QTensor)
    parts = [weight.values, weight.qparams.scale, weight.qparams.zero_point] if integers else [weight.float()]
    return [*parts, *([] if product.bias is None else [product.bias])]


def _forms(product: Any) -> tuple[int, ...]:
    """The integers of a weight and of what goes in, as numbers, which an operator takes; zeros where there are none."""
    if not isinstance(product.weight, QuantizedWeight):
        return (0,) * 8
    both: Any = product.weight.form, product.activations
    return tuple(number for form in both for number in (form.qmin, form.qmax, int(form.signed), form.middle))


def _product_of(
    tensors: list[torch.Tensor], forms: Sequence[int], rounding: str
) -> tuple[Product, DynamicKernel | None]:
    """The product with a weight, of `_tensors`, `_forms` and `rounding_text`, and its kernel."""
    if rounding:
        return _product_of_floats(*tensors, rounding=rounding), None
    form, activations = (AffineInteger(forms[at], forms[at + 1], bool(forms[at + 2]), forms[at + 3]) for at in (0, 4))
    values, scale, zero_point, *bias = tensors
    weight = QTensor._made(values, QParams(scale, zero_point, 0 if scale.dim() else None), form)
    own = bias[0] if bias else None
    kernel = kernel_of(weight, own, activations)

    def product(x: torch.Tensor) -> torch.Tensor:
        result = None if kernel is None else kernel(x)
        return multiplied(x, weight, own, activations) if result is None else result

    return product, kernel


def _product_of_floats(weight: torch.Tensor, bias: torch.Tensor | None = None, *, rounding: str) -> Product:
    """The product of floats with a weight in float32, after a rounding."""
    mode, _, text = rounding.partition(" ")

    def product(x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.float32)
        return torch.nn.functional.linear(quantize(x, text, mode) if text else x, weight, bias)

    return product


def _recurrent(
    x: torch.Tensor,
    sizes: Sequence[int],
    state: list[torch.Tensor],
    of_input: list[torch.Tensor],
    of_hidden: list[torch.Tensor],
    of_state: list[torch.Tensor],
    forms: Sequence[int],
    roundings: Sequence[str],
    law: str,
    reverse: bool,
) -> list[torch.Tensor]:
    input_product, _ = _product_of(of_input, forms[:8], roundings[0])
    hidden_product, kernel = _product_of(of_hidden, forms[8:16], roundings[1])
    projection = _product_of(of_state, forms[16:], roundings[2])[0] if of_state else None
    result, last = _run(law, input_product, hidden_product, kernel, x, sizes, state, reverse, projection)
    return [result, *(one.clone() if one is old else one for one, old in zip(last, state, strict=True))]


def _shapes(x: torch.Tensor, sizes: Sequence[int], state: list[torch.Tensor], *_: Any) -> list[torch.Tensor]:
    result = x.new_empty((x.shape[0], state[0].shape[1]), dtype=torch.float32)
    return [result, *(one.new_empty(one.shape, dtype=torch.float32) for one in state)]


_library.impl("recurrent", _recurrent, "CompositeExplicitAutograd")
torch.library.register_fake("qtorch::recurrent", _shapes, lib=_library)
