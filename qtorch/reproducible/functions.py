"""Laws as functions of tensors that autograd differentiates, and products as one law with their biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from qcore.binding import TORCH
from qcore.linalg.geometry import GRAD_A, GRAD_B
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.functions import LAWS
from qcore.reproducible.muon import MuonFunctions
from qcore.reproducible.reductions import SUM
from qtorch import linalg
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.gradients import apart, leave_transforms_to_eager, refuse_recording, refuse_transforms
from qtorch._rounding.keys import key_tensor
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch._torch_internals import apply_directly
from qtorch.linalg.call import ProductCall, differentiable_product, gradient_product, prepare
from qtorch.linalg.matrices import LINEAR, MATMUL
from qtorch.linalg.operator import OBSERVER
from qtorch.reproducible.fused.plan import Backward, plan_for
from qtorch.reproducible.operations import Names, UnroundedNames
from qtorch.reproducible.operator import call_of, is_operator
from qtorch.reproducible.product import PRODUCT


def _run(
    law: Differentiable, planned: bool, results: str, tensors: tuple[Any, ...], options: tuple[tuple[str, Any], ...]
) -> Any:
    """The result; for "forward" also the saved arrays."""
    plan = plan_for(law, results, tensors, options) if planned else None
    if plan is not None:
        return plan.run(tensors)
    found = law.run(Names, tensors, dict(options))
    return found if results == "forward" else found[0]


def _gradients(law: Differentiable, fused: bool, ctx: Any, saved: Any, *gradients: Any) -> tuple[Any, ...]:
    """The gradients of all tensors, or only of tensors that need one; None for other arguments."""
    tensors = *saved, *gradients
    plain = fused and not torch.compiler.is_dynamo_compiling() and are_plain_tensors(tensors)
    if plain and OBSERVER.get() is None:  # a plan tells an observer nothing
        plan = plan_for(law, Backward(len(saved), ctx.needs_input_grad[2:]), tensors, ctx.options)
        if plan is not None:
            return plan.run(tensors)
    return law.gradients(Names, saved, law.gradient_of(gradients), dict(ctx.options))


class _Smooth(torch.autograd.Function):
    """(law, options, gradients with defined bits, what the law saved, number of arrays, *arrays, *gradients of results)
    -> the gradients with defined bits.

    Their derivatives are those of `Differentiable.smooth_gradients`, which torch differentiates, at every order.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, law: Differentiable, options: Any, found: tuple[Any, ...], saved: Any, count: int, *tensors: Any
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.law, ctx.options, ctx.saved, ctx.count = law, options, saved, count
        ctx.save_for_backward(*tensors)
        return found

    @staticmethod
    def backward(ctx: Any, *second: Any) -> Any:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            tensors = [_wide(x if again or x is None else x.detach()) for x in ctx.saved_tensors]
            needed = [i for i, needs in enumerate(ctx.needs_input_grad[5:]) if needs]
            for i in needed:
                tensors[i].requires_grad_()
            arrays, gradients = tensors[: ctx.count], tuple(tensors[ctx.count :])
            gradient = ctx.law.gradient_of(gradients)
            saved = [_wide(x) for x in ctx.saved]
            found = ctx.law.smooth_gradients(UnroundedNames, arrays, saved, gradient, dict(ctx.options))
            pairs = [(x, _wide(v)) for x, v in zip(found, second, strict=True) if v is not None and x.requires_grad]
            results: list[Any] = [None] * len(tensors)
            if pairs:
                ys, vs = zip(*pairs, strict=True)
                chosen = [tensors[i] for i in needed]
                for i, x in zip(
                    needed, torch.autograd.grad(ys, chosen, vs, create_graph=again, allow_unused=True), strict=True
                ):
                    results[i] = None if x is None else x.to(torch.float32)
        return None, None, None, None, None, *results


def _wide(x: Any) -> Any:
    return x.to(torch.float64) if isinstance(x, torch.Tensor) and x.dtype is torch.float32 else x


def _recorded(law: Differentiable, fused: bool, ctx: Any, saved: Any, arrays: Any, gradients: Any) -> tuple[Any, ...]:
    """`_gradients`, which can be differentiated."""
    with torch.no_grad():
        found = _gradients(law, fused, ctx, saved, *gradients)
    kept = saved if law.by_pieces else ()
    return _Smooth.apply(law, ctx.options, tuple(found), kept, len(arrays), *arrays, *gradients)


class _Operator(torch.autograd.Function):
    """(the texts of `call_of`, which tensors need gradients, *tensors) -> a law's result, in a compiled program."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, name: str, options: str, wanted: tuple[bool, ...], *tensors: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.call = name, options, wanted
        return torch.ops.qtorch.reproduce(tensors, name, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_recording(gradient)
        found = iter(torch.ops.qtorch.reproduce_gradients(ctx.saved_tensors, gradient, *ctx.call))
        return None, None, None, *[next(found) if one else None for one in ctx.call[2]]


def differentiable(law: Differentiable, recorded: Callable[..., tuple[Any, ...]] | None = None) -> Callable[..., Any]:
    """The function (*tensors, **options) of a law, whose gradients are the law's, and can be differentiated in turn.

    Args:
        law: the law.
        recorded: (arrays, which of them need gradients, gradient, **options) -> the gradients, by functions that
            autograd records; with None torch differentiates `law.smooth_gradients`.
    """

    fused = law.fusible

    class Law(torch.autograd.Function):
        @staticmethod
        def forward(  # type: ignore[override]
            ctx: Any, planned: bool, options: tuple[tuple[str, Any], ...], *tensors: Any
        ) -> Any:
            result, saved = _run(law, planned, "forward", tensors, options)
            # AOTAutograd refuses a second derivative of a compiled program.
            arrays = () if law.by_pieces or torch.compiler.is_dynamo_compiling() else tensors
            ctx.save_for_backward(*saved, *arrays)
            ctx.saved = len(saved)
            ctx.options = options
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            refuse_recording(*gradients)
            tensors = ctx.saved_tensors
            saved, arrays = tensors[: ctx.saved], tensors[ctx.saved :]
            if not torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling():
                return None, None, *_gradients(law, fused, ctx, saved, *gradients)
            if recorded is not None:
                return None, None, *recorded(arrays, ctx.needs_input_grad[2:], *gradients, **dict(ctx.options))
            return None, None, *_recorded(law, fused, ctx, saved, arrays, gradients)

    apply = apply_directly(Law)

    def function(*tensors: Any, **options: Any) -> Any:
        given = tuple(options.items())
        compiling = torch.compiler.is_dynamo_compiling()
        plain = not compiling and are_plain_tensors(tensors)
        recorded = False
        if compiling:
            leave_transforms_to_eager()
        if torch.is_grad_enabled():
            for x in tensors:
                recorded = recorded or (x is not None and x.requires_grad)
        if compiling and is_operator(law, tensors):
            call = call_of(law, given)
            if not recorded:
                return torch.ops.qtorch.reproduce(tensors, *call)
            wanted = tuple([x is not None and x.requires_grad for x in tensors])
            return _Operator.apply(*call, wanted, *apart(*tensors))
        if not plain and not compiling:
            refuse_transforms(recorded, tensors)
        if not recorded:
            return _run(law, fused and plain, "result", tensors, given)
        if compiling:
            return Law.apply(False, given, *apart(*tensors))
        return (apply if plain else Law.apply)(fused and plain, given, *tensors)

    return function


def _recorded_product(
    arrays: tuple[Any, ...],
    needed: tuple[bool, ...],
    gradient: torch.Tensor,
    geometry: str,
    products: tuple[str, str, str],
) -> tuple[Any, ...]:
    """The gradients of `PRODUCT` by two products and a sum, each a function that autograd records."""
    a, b, _ = arrays
    call, of_y = ProductCall(geometry, products, a.shape, b.shape, gradient.shape), FUNCTIONS.settle(gradient)
    of_a = gradient_product(of_y, b, GRAD_A, call) if needed[0] else None
    of_b = gradient_product(of_y, a, GRAD_B, call) if needed[1] else None
    rows = tuple(range(gradient.ndim - 1))
    return of_a, of_b, FUNCTIONS.call(SUM, gradient, axes=rows, keepdims=False) if needed[2] else None


_run_product = differentiable(PRODUCT, recorded=_recorded_product)
_GEOMETRIES = {"matmul": (MATMUL, "grad_a", "grad_b"), "linear": (LINEAR, "grad_input", "grad_weight")}


_BOUND = {law.name: differentiable(law) for law in LAWS}


@lru_cache(maxsize=1024)
def _default_call(name: str, a: torch.Size, b: torch.Size) -> ProductCall:
    """The call of a product of float32 numbers with float64 sums: its arguments are checked once for each shape."""
    geometry, of_a, of_b = _GEOMETRIES[name]
    x, y = (torch.empty((), dtype=torch.float32, device="cpu").expand(shape) for shape in (a, b))  # without memory
    return prepare(geometry, x, y, None, None, None, None, (of_a, of_b), None, None)[2]


class Tensors(MuonFunctions, package=__name__.rpartition(".")[0], words=TORCH):
    """The functions of tensors."""

    xp, linalg = Names, linalg

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        return _BOUND[law.name](*arrays, **options)

    def float32(self, name: str, x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype is torch.float32 and x.layout is torch.strided:
            return x
        return _checked(name, x, False, "float32")

    def number(self, value: float, like: torch.Tensor) -> torch.Tensor:
        return torch.full((), value, dtype=torch.float32, device=like.device)

    def detached(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    def bools(self, name: str, x: Any) -> Any:
        return _checked(name, x, isinstance(x, torch.Tensor) and x.dtype is torch.bool, "bools")

    def known(self, x: torch.Tensor) -> float | None:
        known = not torch.compiler.is_dynamo_compiling() and are_plain_tensors((x,)) and x.is_cpu
        return float(x) if known else None

    def integers(self, name: str, x: Any) -> Any:
        are_integers = isinstance(x, torch.Tensor) and not x.dtype.is_floating_point and not x.dtype.is_complex
        return _checked(name, x, are_integers and x.dtype is not torch.bool, "integers")

    def _product(self, name: str, a: Any, b: Any, bias: Any, products: dict[str, Any]) -> Any:
        """As one law of tensors of the CPU, unless the product reads random words, or is watched."""
        geometry, of_a, of_b = _GEOMETRIES[name]
        known = {"operands", "accumulator", of_a, of_b, "key", "scaling"}
        if torch.compiler.is_dynamo_compiling():
            one_law = is_operator(PRODUCT, (a, b, bias))
        else:
            one_law = are_plain_tensors((a, b, bias)) and a.is_cpu and OBSERVER.get() is None
        if not one_law or not products.keys() <= known:
            return super()._product(name, a, b, bias, products)
        if not products and not torch.compiler.is_dynamo_compiling():
            call = _default_call(name, a.shape, b.shape)
        else:
            operands, accumulator, grad_a, grad_b, key, scaling = map(
                products.get, ("operands", "accumulator", of_a, of_b, "key", "scaling")
            )
            key, scaling, call = prepare(
                geometry, a, b, operands, accumulator, grad_a, grad_b, (of_a, of_b), key, scaling
            )
            if key is not None or scaling is not None:
                return self._plus(differentiable_product(a, b, key, scaling, call), bias, 0)
        if bias is not None:
            self._check_bias(bias, call.result[-1])
        return _run_product(a, b, bias, geometry=call.geometry, products=call.products)

    def rounded(self, x: torch.Tensor, number: Any) -> torch.Tensor:
        return quantize(x, number)

    def constants(self, array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(array).to(like.device)

    def key_words(self, key: Any) -> torch.Tensor:
        return key_tensor(key)


FUNCTIONS = Tensors()


def _checked(name: str, x: Any, fits: bool, allowed: str) -> Any:
    if isinstance(x, torch.Tensor):
        check_dense(name, x)
    if not fits:
        came = f"tensor of {x.dtype}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"{name} is a {came}; allowed is a torch.Tensor of {allowed}")
    return x
