"""A call of a product with its gradients: the checks of its arguments, and the functions that autograd differentiates.

Programs of other dtypes, and `torch.autocast`, call a product through `in_float32`. `prepare` checks the arguments;
`differentiable_product` multiplies, and `add_bias` adds a bias to the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from math import prod
from typing import Any, TypeVar

import torch

from qcore import Accumulator, Number, Operand, Product
from qcore.arguments import check_type
from qcore.linalg import arrays
from qcore.linalg.convolution import Geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry, check_bias, derivatives
from qcore.linalg.product import check_addend, check_products, check_scaling
from qtorch._conversion import HALVES, converted
from qtorch._rounding.cache import cached, literal
from qtorch._rounding.dense import check_dense
from qtorch._rounding.gradients import apart, is_differentiated, refuse_recording
from qtorch._rounding.keys import Key, given_or_drawn
from qtorch._rounding.paths.choice import are_plain_tensors, check_device, is_plain_tensor
from qtorch._rounding.plan import text_of
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import apply_directly, check_one_tangent, check_passes, constant_result, unseen_by_modes
from qtorch.linalg.native import ProductSpec
from qtorch.linalg.operator import OBSERVER, check_placed, multiply_tensors, observed_by

Function = TypeVar("Function", bound=Callable[..., torch.Tensor])
_MATMUL, _SUM = MatrixGeometry().text, Product().text  # of a bias's gradient


def first_scaling(history: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The state of delayed scales before the first call, see `qcore.linalg.first_scaling`.

    Args:
        history: the number of past tensors in a scale's history.
        device: the device of the tensor; None is the CPU.

    Returns:
        A float32 tensor of shape (3, 1 + history).

    Raises:
        ValueError: if history is less than 1.
        RuntimeError: if torch does not have this device.

    Example:
        >>> first_scaling(2)[0]
        tensor([1., 0., 0.])
    """
    return torch.from_numpy(arrays.first_scaling(history)).to(torch.device("cpu" if device is None else device))


def in_float32(function: Function) -> Function:
    """A product that takes bfloat16 and float16 tensors, and may run under `torch.autocast`.

    Operands are the float32 numbers that the given tensors hold. The result in float32 is rounded once, to nearest, to
    the tensors' dtype or, under autocast, to autocast's.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> torch.Tensor:
        first = arguments[0] if arguments else next(iter(options.values()), None)
        refuse_tracers(first)
        if not isinstance(first, torch.Tensor):
            return function(*arguments, **options)  # which raises
        with unseen_by_modes():  # a mode that lowers functions must not see the functions that a product is made of
            return call_in_float32(function, first, arguments, options)

    return call  # type: ignore[return-value]


def refuse_tracers(x: Any) -> None:
    """Raises RuntimeError in `torch.jit.trace` and `torch.fx.symbolic_trace`, whose programs cannot hold products."""
    if torch.jit.is_tracing() or isinstance(x, torch.fx.Proxy):  # type: ignore[attr-defined]
        tracer = "torch.jit.trace" if torch.jit.is_tracing() else "torch.fx.symbolic_trace"  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{tracer} of a model with low-precision products; allowed are torch.export.export(model, inputs) and "
            "torch.compile"
        )


def call_in_float32(
    function: Callable[..., Any], first: torch.Tensor, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A call of a function that computes in float32, see `in_float32`; it returns a tensor, or a tuple of tensors.

    `first` among its arguments has the device and, without autocast, the result's dtype.
    """
    device = first.device.type
    automatic = device != "meta" and torch.is_autocast_enabled(device)  # which torch does not answer for meta
    if not automatic and first.dtype not in HALVES:
        return function(*arguments, **options)
    dtype = torch.get_autocast_dtype(device) if automatic else first.dtype
    # The state of delayed scales is float32, whatever the operands' dtype.
    state = {"scaling": options["scaling"]} if "scaling" in options else {}
    options = {name: x for name, x in options.items() if name != "scaling"}
    _check_dtypes(first, (*arguments, *options.values()), automatic)
    arguments = tuple([_wide(x) for x in arguments])
    options = {name: _wide(x) for name, x in options.items()} | state
    if not automatic:
        return _in_dtype(function(*arguments, **options), dtype)
    with torch.autocast(device, enabled=False):
        return _in_dtype(function(*arguments, **options), dtype)


def _check_dtypes(first: torch.Tensor, others: tuple[Any, ...], automatic: bool) -> None:
    """Raises for tensors of different dtypes, unless autocast converts them to one dtype."""
    for x in others:
        if isinstance(x, tuple | list):
            _check_dtypes(first, tuple(x), automatic)
        if isinstance(x, torch.Tensor) and x.dtype is torch.float64:
            raise TypeError(
                "a tensor has dtype torch.float64; allowed are torch.float32, torch.bfloat16, torch.float16"
            )
        if not automatic and isinstance(x, torch.Tensor) and x.dtype is torch.float32 and x.dim() > 0:
            raise TypeError(
                f"tensors have the dtypes {first.dtype} and torch.float32; allowed is one for all, or torch.autocast"
            )


def _wide(x: Any) -> Any:
    if isinstance(x, tuple | list):  # the weights and states of recurrent layers
        return tuple([_wide(one) for one in x])
    return converted(x, torch.float32, exported=True) if isinstance(x, torch.Tensor) and x.dtype in HALVES else x


def _in_dtype(y: Any, dtype: torch.dtype) -> Any:
    return tuple([_in_dtype(one, dtype) for one in y]) if isinstance(y, tuple) else converted(y, dtype, exported=True)


@dataclass(slots=True)
class ProductCall:
    """A product with its gradients, checked. It is not a tuple: torch.func would take a tuple's numbers for arguments.

    Attributes:
        geometry: the geometry as text.
        products: the forward product, and those of the gradients of a and b, as text.
        a, b, result: the shapes.
    """

    geometry: str
    products: tuple[str, str, str]
    a: Any
    b: Any
    result: Any

    def spec(self, which: str) -> ProductSpec:
        """The forward product, or the product of a gradient."""
        if which == FORWARD:
            return ProductSpec(self.b, self.result, self.geometry, which, self.products[0])
        shape, product = (self.a, self.products[1]) if which == GRAD_A else (self.b, self.products[2])
        return ProductSpec(shape, shape, self.geometry, which, product)


def prepare(
    geometry: Geometry,
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Any,
    accumulator: Any,
    grad_a: Any,
    grad_b: Any,
    names: tuple[str, str],
    key: Key,
    scaling: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, ProductCall]:
    """Checks the arguments of a product; returns the key's words, the state of delayed scales, and the call.

    Args:
        geometry: the geometry.
        a, b: the operands.
        operands, accumulator, grad_a, grad_b, names: see `qcore.linalg.product.check_products`.
        key, scaling, c: the user's arguments.
    """
    name_a, name_b = geometry.names
    check_operand(name_a, a)
    check_operand(name_b, b)
    if is_sharded(a, b):
        check_placed(name_a, name_b, a, b)
    check_device(name_b, b, a.device, name_a)
    # A traced program holds texts instead of formats. Eager calls look up texts as well, because they are hashed
    # faster.
    if torch.compiler.is_dynamo_compiling():
        shape = _shape(geometry, a.shape, b.shape)
        pair = tuple(map(_literal, operands)) if isinstance(operands, tuple | list) else _literal(operands)
        described = _described_constant(pair, *map(_literal, (accumulator, grad_a, grad_b)), names)
    else:
        shape = _shape_once(geometry, a.shape, b.shape)
        pair = tuple([_text(x, Operand) for x in operands]) if isinstance(operands, tuple | list) else operands
        gradients = _text(grad_a, Product), _text(grad_b, Product)
        described = _described(pair, _text(accumulator, Accumulator), *gradients, names)
    products, stochastic, history, plain, scales_of_tensors = described
    if c is not None:
        _check_addend(c, a, shape, scales_of_tensors)
    if not plain and is_sharded(a, b):
        raise TypeError(f"{name_a} or {name_b} is a DTensor; allowed are operands without scales there")
    if history is not None or scaling is not None:
        _check_scaling(history, scaling)
    words = given_or_drawn(key, stochastic, is_plain_tensor(a))
    return words, scaling, ProductCall(geometry.text, products, a.shape, b.shape, shape)


def check_operand(name: str, x: Any) -> None:
    check_type(name, x, torch.Tensor, "a torch.Tensor of float32")
    if x.dtype is not torch.float32:
        raise TypeError(f"{name} has dtype {x.dtype}; allowed is torch.float32")
    check_dense(name, x)


def _check_addend(c: Any, a: torch.Tensor, shape: tuple[int, ...], scales_of_tensors: str | None) -> None:
    check_operand("c", c)
    check_device("c", c, a.device, "the operands")
    if is_sharded(a, c):
        raise TypeError("c or an operand is a DTensor; allowed there is c=None")
    check_addend((tuple(c.shape), str(c.dtype)), shape, scales_of_tensors)


def _shape(geometry: Geometry, a: torch.Size, b: torch.Size) -> tuple[int, ...]:
    """The result's shape, once the operands' are checked."""
    geometry.check(tuple(a), tuple(b))
    return geometry.result(tuple(a), tuple(b))


Described = tuple[tuple[str, str, str], bool, int | None, bool, str | None]


def _describe(*arguments: Any) -> Described:
    """The three products as text, and four of their attributes. Their arguments are checked."""
    products = check_products(*arguments)
    return products.texts, products.stochastic, products.history, products.plain, products.scale_of_tensor


_shape_once = lru_cache(maxsize=1024)(_shape)
_described = cached(_describe)


@constant_result
def _described_constant(*arguments: Any) -> Described:
    return _described(*arguments)


def _check_scaling(history: int | None, scaling: Any) -> None:
    given = None
    if scaling is not None:
        check_passes()
        check_type("scaling", scaling, torch.Tensor, "a torch.Tensor of float32")
        check_dense("scaling", scaling)
        given = tuple(scaling.shape), str(scaling.dtype)
    check_scaling(history, given)


def _text(argument: Any, class_: type[Any]) -> Any:
    """The text of an argument of that class, which takes less time to look up."""
    return argument.text if type(argument) is class_ else argument


def _literal(argument: Any) -> Any:
    """The text or constant that represents a format, an accumulator or a product in a traced program."""
    if isinstance(argument, Number):
        return text_of(argument)
    return literal(getattr(argument, "text", argument))


class _Product(torch.autograd.Function):
    """(first, second, addend, key words, state, which, call) -> the product.

    `which` is FORWARD except in second derivatives. The forward product gets the addend, if there is one, and the whole
    state of delayed scales, all other products its first column.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        first: torch.Tensor,
        second: torch.Tensor,
        addend: torch.Tensor | None,
        key: torch.Tensor | None,
        state: Any,
        which: str,
        call: ProductCall,
    ) -> torch.Tensor:
        return multiply_tensors(first, second, key, state, call.spec(which), addend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        first, second, _, key, state, ctx.which, ctx.call = inputs
        ctx.state = state
        # Dynamo cannot trace a ContextVar.
        ctx.observer = None if torch.compiler.is_dynamo_compiling() else OBSERVER.get()
        # The backward pass advances the state at its end: a second one must read the scales of this call.
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
        first, second, _, key, *_ = inputs
        ctx.save_for_forward(first, second, key, None)

    @staticmethod
    def jvp(ctx: Any, of_first: Any, of_second: Any, of_addend: Any, *_: Any) -> torch.Tensor:  # type: ignore[override]
        """The sum of two products, of each operand's tangent with the other operand, and of the addend's tangent."""
        if ctx.state is not None:
            raise NotImplementedError(_DELAYED.format("forward-mode"))
        check_one_tangent()
        first, second, key, _ = ctx.saved_tensors
        pairs = [(x, y) for x, y in ((of_first, second), (first, of_second)) if x is not None and y is not None]
        found = [_apply(x, y, None, key, None, ctx.which, ctx.call) for x, y in pairs]
        found += [] if of_addend is None else [of_addend]
        if not pairs:
            return found[0].clone()  # a tangent of its own: the result may be changed in place
        return sum(found[1:], found[0])


_DELAYED = (
    "products with delayed scales have no {} derivatives: a scale follows from past tensors of the same role, and "
    "there are none of these. Allowed are scales just in time, such as Scale() for Scale(history=16)"
)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    first, second, key, scales = ctx.saved_tensors
    call: ProductCall = ctx.call
    if scales is not None and ctx.which != FORWARD:
        raise NotImplementedError(_DELAYED.format("second"))
    if ctx.state is not None:
        operands = first.detach(), second.detach(), gradient.detach()
        scales = torch.ops.qtorch.gather(ctx.state, scales, *operands, *call.products)
    of_first, of_second = derivatives(ctx.which, gradient, first, second)
    need_first, need_second, need_addend, *_ = ctx.needs_input_grad
    return (
        gradient_product(*of_first, call, key, scales) if need_first else None,
        gradient_product(*of_second, call, key, scales) if need_second else None,
        gradient if need_addend else None,
        *(None,) * 4,
    )


_apply_plain = apply_directly(_Product)


def _apply(first: torch.Tensor, second: torch.Tensor, addend: Any, *call: Any) -> torch.Tensor:
    """A product that autograd differentiates, in eager programs."""
    if are_plain_tensors((first, second, addend)):
        return _apply_plain(first, second, addend, *call)
    return _WithTangent.apply(first, second, addend, *call)


def gradient_product(
    first: torch.Tensor, second: torch.Tensor, which: str, call: ProductCall, key: Any = None, scales: Any = None
) -> torch.Tensor:
    """A product of a backward pass, which autograd differentiates where that pass is recorded."""
    # AOTAutograd refuses a second derivative of a compiled program; tracing another function would cost only time.
    if torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling():
        return _apply(first, second, None, key, scales, which, call)
    return multiply_tensors(first, second, key, scales, call.spec(which))


def differentiable_product(
    a: torch.Tensor,
    b: torch.Tensor,
    key: torch.Tensor | None,
    state: torch.Tensor | None,
    call: ProductCall,
    c: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product; its gradients are the two other products, which also advance the state of delayed scales.

    The accumulators start at c, whose gradient is the result's.
    """
    if not torch.compiler.is_dynamo_compiling():
        return _apply(a, b, c, key, state, FORWARD, call)
    differentiated = is_differentiated(a) or is_differentiated(b) or (c is not None and is_differentiated(c))
    a, b = apart(a, b)
    if differentiated:
        return _Product.apply(a, b, c, key, state, FORWARD, call)
    return multiply_tensors(a, b, key, state, call.spec(FORWARD), c)


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
        call = ProductCall(_MATMUL, (_SUM, _SUM, _SUM), ones.shape, (1, rows.shape[1]), rows.shape)
        return gradient, gradient_product(rows, ones, GRAD_B, call)[0], None


class _AddBiasWithTangent(_AddBias):
    @staticmethod
    def jvp(ctx: Any, of_x: Any, of_bias: Any, *_: Any) -> torch.Tensor:  # type: ignore[override]
        if of_bias is None:
            return of_x.clone()  # a tangent of its own: the result may be changed in place
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
    # Dynamo cannot trace a function with forward-mode derivatives.
    apply = _AddBias.apply if torch.compiler.is_dynamo_compiling() else _AddBiasWithTangent.apply
    return apply(x, bias, dim)
