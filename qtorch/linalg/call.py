"""A call of a product with its gradients: arguments, checked, and the function that autograd knows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from qcore import Accumulator, Number, Operand, Product
from qcore.arguments import check_type
from qcore.linalg import arrays
from qcore.linalg.convolution import Form
from qcore.linalg.forms import FORWARD, GRAD_A, derivatives
from qcore.linalg.product import check_products, check_scaling
from qtorch._rounding.cache import cached, literal
from qtorch._rounding.dense import check_dense
from qtorch._rounding.gradients import apart, is_differentiated, refuse_recording
from qtorch._rounding.keys import Key, check_noise, draw, draw_opaquely, key_tensor
from qtorch._rounding.paths.choice import check_device, is_plain_tensor
from qtorch._rounding.plan import text_of
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import apply_directly, check_one_tangent, check_passes, constant
from qtorch.linalg.operator import OBSERVER, multiply_tensors, observed_by
from qtorch.linalg.sharded import check_placed


def first_scaling(history: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The state of delayed scales before the first call, see `qcore.linalg.first_scaling`.

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
    return torch.from_numpy(arrays.first_scaling(history)).to(torch.device("cpu" if device is None else device))


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
        operands, accumulator, grad_a, grad_b, names: see `qcore.linalg.product.check_products`.
        key, scaling: as the user gives them.
    """
    for name, x in zip(form.names, (a, b), strict=True):
        check_operand(name, x)
    check_placed(form.names, a, b)
    check_device(form.names[1], b, a.device, form.names[0])
    if torch.compiler.is_dynamo_compiling():
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
        check_passes()
        check_type("scaling", scaling, torch.Tensor, "a torch.Tensor of float32")
        check_dense("scaling", scaling)
        shapes = tuple(scaling.shape), str(scaling.dtype)
    check_scaling(history, shapes)
    return _key_words(key, stochastic, is_plain_tensor(a)), scaling, shape, form.text, *texts


def check_operand(name: str, x: Any) -> None:
    check_type(name, x, torch.Tensor, "a torch.Tensor of float32")
    if x.dtype is not torch.float32:
        raise TypeError(f"{name} has dtype {x.dtype}; allowed is torch.float32")
    check_dense(name, x)


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


@dataclass(slots=True)
class Shapes:
    """Shapes of a, b and the result. It is no tuple, whose numbers torch.func would take for arguments each."""

    a: Any
    b: Any
    result: Any


class _Product(torch.autograd.Function):
    """(first, second, key words, state, shapes of a, b and the result, which, form, the three products as text).

    State is that of delayed scales for the forward product, and its first column for the others.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        first: torch.Tensor,
        second: torch.Tensor,
        key: torch.Tensor | None,
        state: Any,
        shapes: Shapes,
        which: str,
        form: str,
        *products: str,
    ) -> torch.Tensor:
        return _multiply(first, second, key, state, shapes, which, form, *products)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        first, second, key, state, ctx.shapes, ctx.which, ctx.form, *ctx.products = inputs
        ctx.state = state
        ctx.observer = (
            None if torch.compiler.is_dynamo_compiling() else OBSERVER.get()
        )  # Dynamo cannot trace a ContextVar
        ctx.save_for_backward(first, second, key, None if state is None else state[:, :1].clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_recording(gradient)
        if ctx.observer is None:
            return _gradients(ctx, gradient)
        with observed_by(ctx.observer):
            return _gradients(ctx, gradient)


class _WithTangent(_Product):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _Product.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:3], None)

    @staticmethod
    def jvp(ctx: Any, of_first: Any, of_second: Any, *_: Any) -> torch.Tensor:  # type: ignore[override]
        """The sum of the same product of each operand's tangent with the other operand."""
        if ctx.state is not None:
            raise NotImplementedError(_DELAYED.format("forward-mode"))
        check_one_tangent()
        first, second, key, _ = ctx.saved_tensors
        pairs = [(x, y) for x, y in ((of_first, second), (first, of_second)) if x is not None and y is not None]
        found = [_apply(x, y, key, None, ctx.shapes, ctx.which, ctx.form, *ctx.products) for x, y in pairs]
        return found[0] if len(found) == 1 else found[0] + found[1]


_DELAYED = (
    "products with delayed scales have no {} derivatives: a scale follows from past tensors of the same role, and "
    "there are none of these. Allowed are scales just in time, such as Scale() for Scale(history=16)"
)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    first, second, key, scales = ctx.saved_tensors
    if scales is not None and ctx.which != FORWARD:
        raise NotImplementedError(_DELAYED.format("second"))
    if ctx.state is not None:
        operands = first.detach(), second.detach(), gradient.detach()
        scales = torch.ops.qtorch.gather(ctx.state, scales, *operands, *ctx.products)
    # AOTAutograd refuses a second derivative of a compiled program; tracing another function would cost only time.
    multiply = _apply if torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling() else _multiply
    pairs = zip(derivatives(ctx.which, gradient, first, second), ctx.needs_input_grad, strict=False)
    of_first, of_second = (
        multiply(x, y, key, scales, ctx.shapes, which, ctx.form, *ctx.products) if needed else None
        for (x, y, which), needed in pairs
    )
    return of_first, of_second, None, None, None, None, None, None, None, None


_apply_plain = apply_directly(_Product)


def _apply(first: torch.Tensor, second: torch.Tensor, *call: Any) -> torch.Tensor:
    """A product that autograd differentiates, in eager programs."""
    if is_plain_tensor(first) and is_plain_tensor(second):
        return _apply_plain(first, second, *call)
    return _WithTangent.apply(first, second, *call)


def _multiply(
    first: torch.Tensor,
    second: torch.Tensor,
    key: torch.Tensor | None,
    state: Any,
    shapes: Shapes,
    which: str,
    form: str,
    *products: str,
) -> torch.Tensor:
    """A product without derivatives."""
    if which == FORWARD:
        return multiply_tensors(first, second, key, state, shapes.b, shapes.result, form, which, products[0])
    shape, product = (shapes.a, products[1]) if which == GRAD_A else (shapes.b, products[2])
    return multiply_tensors(first, second, key, state, shape, shape, form, which, product)


def differentiable_product(
    a: torch.Tensor,
    b: torch.Tensor,
    key: torch.Tensor | None,
    state: Any,
    shape: Any,
    form: str,
    *products: str,
) -> torch.Tensor:
    """The product; its gradients are those of the other two products, and advance the state of delayed scales."""
    shapes = Shapes(a.shape, b.shape, shape)
    if not torch.compiler.is_dynamo_compiling():
        return _apply(a, b, key, state, shapes, FORWARD, form, *products)
    multiply = _Product.apply if is_differentiated(a) or is_differentiated(b) else _multiply
    a, b = apart(a, b)
    return multiply(a, b, key, state, shapes, FORWARD, form, *products)


def gradient_product(
    gradient: torch.Tensor, other: torch.Tensor, shapes: Shapes, which: str, form: str, product: str
) -> torch.Tensor:
    """A product of a backward pass, which autograd differentiates where that pass is recorded."""
    recorded = torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling()
    return (_apply if recorded else _multiply)(gradient, other, None, None, shapes, which, form, *(product,) * 3)
