"""A call of a product with its gradients: arguments, checked, and the function that autograd knows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from qcore import Accumulator, Number, Operand, Product
from qcore.accumulate import arrays
from qcore.accumulate.convolution import Form
from qcore.accumulate.forms import FORWARD, GRAD_A, GRAD_B
from qcore.accumulate.product import check_products, check_scaling
from qcore.arguments import check_type
from qtorch._rounding.cache import cached, literal
from qtorch._rounding.gradients import apart, is_differentiated
from qtorch._rounding.keys import Key, check_noise, draw, draw_opaquely, key_tensor
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.plan import text_of
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import apply_directly, constant
from qtorch.linalg.operator import OBSERVER, multiply_tensors, observed_by
from qtorch.linalg.sharded import check_placed


def first_scaling(history: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The state of delayed scales before the first call, see `qcore.accumulate.first_scaling`.

    Args:
        history: of the scales, how many past tensors they follow from.
        device: of the tensor; None is the CPU.

    Returns:
        A float32 tensor of shape (3, 1 + history).

    Raises:
        TypeError: if history is no int.
        ValueError: if history is less than 1.
        RuntimeError: if device names none.

    Example:
        >>> first_scaling(2)[0]
        tensor([1., 0., 0.])
    """
    return torch.from_numpy(arrays.first_scaling(history)).to(device or "cpu")


def prepare(
    form: Form,
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Any,
    accumulator: Any,
    grad_a: Any,
    grad_b: Any,
    names: tuple[str, str],
    key: Key,
    scaling: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """A call's key, state of delayed scales, result's shape, form and products, checked.

    Args:
        form: the form.
        a, b: the operands.
        operands, accumulator, grad_a, grad_b, names: see `qcore.accumulate.product.check_products`.
        key, scaling: as the user gives them.
    """
    for name, x in zip(form.names, (a, b), strict=True):
        check_operand(name, x)
    check_placed(form.names, a, b)
    if a.device != b.device:
        raise ValueError(f"{form.names[1]} is on {b.device}; allowed is the device of {form.names[0]}, {a.device}")
    if torch.compiler.is_compiling():
        shape = _shape(form, a.shape, b.shape)
        pair = tuple(map(_literal, operands)) if isinstance(operands, tuple | list) else _literal(operands)
        *texts, stochastic, history, plain = _checked_texts(pair, *map(_literal, (accumulator, grad_a, grad_b)), names)
    else:
        shape = _shape_once(form, a.shape, b.shape)
        pair = tuple([_text(x, Operand) for x in operands]) if isinstance(operands, tuple | list) else operands
        said = pair, _text(accumulator, Accumulator), _text(grad_a, Product), _text(grad_b, Product), names
        *texts, stochastic, history, plain = _described(*said)
    if not plain and is_sharded(a, b):
        raise TypeError(f"{form.names[0]} or {form.names[1]} is a DTensor; allowed are operands without scales there")
    shapes = None
    if scaling is not None:
        check_type("scaling", scaling, torch.Tensor, "a torch.Tensor of float32")
        shapes = tuple(scaling.shape), str(scaling.dtype)
    check_scaling(history, shapes)
    return _key_words(key, stochastic, is_plain_tensor(a)), scaling, shape, form.text, *texts


def check_operand(name: str, x: Any) -> None:
    check_type(name, x, torch.Tensor, "a torch.Tensor of float32")
    if x.dtype is not torch.float32:
        raise TypeError(f"{name} has dtype {x.dtype}; allowed is torch.float32")


def _shape(form: Form, a: torch.Size, b: torch.Size) -> tuple[int, ...]:
    """The result's shape, once the operands' are checked."""
    form.check(tuple(a), tuple(b))
    return form.result(tuple(a), tuple(b))


def _describe(*arguments: Any) -> tuple[str, str, str, bool, int | None, bool]:
    """What a call needs of its products, once they are checked."""
    products = check_products(*arguments)
    return *products.texts, products.stochastic, products.history, products.plain


_shape_once = lru_cache(maxsize=1024)(_shape)
_described = cached(_describe)


@constant
def _checked_texts(*arguments: Any) -> tuple[str, str, str, bool, int | None, bool]:
    return _described(*arguments)


def _text(argument: Any, kind: type[Any]) -> Any:
    """What takes less time to look up than an argument of that kind, and means the same."""
    return argument.text if type(argument) is kind else argument


def _literal(argument: Any) -> Any:
    """What a traced program can hold in the place of a format, an accumulator or a product."""
    if isinstance(argument, Number):
        return text_of(argument)
    return literal(getattr(argument, "text", argument))


def _key_words(key: Key, stochastic: bool, plain: bool) -> torch.Tensor | None:
    if not stochastic:
        if key is not None:
            check_noise(key, 24, 0)
        return None
    if key is not None:
        return key_tensor(key)
    return draw() if plain else draw_opaquely()


def _forward(
    a: torch.Tensor, b: torch.Tensor, key: torch.Tensor | None, state: Any, shape: Any, form: str, *products: str
) -> torch.Tensor:
    return multiply_tensors(a, b, key, state, b.shape, shape, form, FORWARD, products[0])


class _Product(torch.autograd.Function):
    """(a, b, key words, state, the result's shape, form, the three products as text) -> the product."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: torch.Tensor, b: torch.Tensor, key: torch.Tensor | None, state: Any, shape: Any, form: str, *products: str
    ) -> torch.Tensor:
        return _forward(a, b, key, state, shape, form, *products)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, key, state, _, ctx.form, ctx.forward_product, ctx.grad_a, ctx.grad_b = inputs
        ctx.state = state
        ctx.observer = None if torch.compiler.is_compiling() else OBSERVER.get()  # Dynamo cannot trace a ContextVar
        ctx.save_for_backward(a, b, key, None if state is None else state[:, :1].clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.observer is None:
            return _gradients(ctx, gradient)
        with observed_by(ctx.observer):
            return _gradients(ctx, gradient)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    a, b, key, scales = ctx.saved_tensors
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        of_a = multiply_tensors(gradient, b, key, scales, a.shape, a.shape, ctx.form, GRAD_A, ctx.grad_a)
    if ctx.needs_input_grad[1]:
        of_b = multiply_tensors(gradient, a, key, scales, b.shape, b.shape, ctx.form, GRAD_B, ctx.grad_b)
    if ctx.state is not None:
        texts = ctx.forward_product, ctx.grad_a, ctx.grad_b
        torch.ops.qtorch.advance(ctx.state, a.detach(), b.detach(), gradient.detach(), *texts)
    return of_a, of_b, None, None, None, None, None, None, None


_apply_plain = apply_directly(_Product)


def differentiable_product(
    a: torch.Tensor, b: torch.Tensor, key: torch.Tensor | None, state: Any, shape: Any, form: str, *products: str
) -> torch.Tensor:
    """The product; its gradients are those of the other two products, and advance the state of delayed scales."""
    if torch.compiler.is_compiling():
        apply = _Product.apply if is_differentiated(a) or is_differentiated(b) else _forward
        a, b = apart(a, b)
    else:
        apply = _apply_plain if is_plain_tensor(a) and is_plain_tensor(b) else _Product.apply
    return apply(a, b, key, state, shape, form, *products)
