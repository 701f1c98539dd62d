"""Laws as functions that JAX differentiates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.layers import Layers
from qcore.numerics.optimizers.functions import Optimizing
from qjax._rounding.inputs import as_float32, as_integers
from qjax._rounding.scopes import LAW
from qjax.reproducible.array_names import Names

Options = tuple[tuple[str, Any], ...]


@partial(jax.jit, static_argnums=(0, 1))
def _run(law: Differentiable, options: Options, *arrays: Any) -> Any:
    return law.run(Names, arrays, dict(options))


@partial(jax.jit, static_argnums=(0, 1))
def _run_gradients(law: Differentiable, options: Options, saved: Any, gradient: Any) -> Any:
    return law.gradients(Names, saved, gradient, dict(options))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _gradients(law: Differentiable, options: Options, saved: Any, gradient: Any) -> Any:
    return _run_gradients(law, options, saved, gradient)


@_gradients.defjvp
def _refuse(law: Differentiable, options: Options, primals: Any, tangents: Any) -> Any:
    """Rounded steps have no derivative: without an error the second one would be 0."""
    raise NotImplementedError(law.no_second_derivative)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(law: Differentiable, options: Options, *arrays: Any) -> Any:
    with jax.named_scope(LAW):
        return _run(law, options, *arrays)[0]


def _forward(law: Differentiable, options: Options, *arrays: Any) -> tuple[Any, Any]:
    return _run(law, options, *arrays)


_apply.defvjp(_forward, _gradients)


def differentiable(law: Differentiable) -> Callable[..., Any]:
    """The function (*arrays, **options) of a law, whose gradients are the law's."""

    def function(*arrays: Any, **options: Any) -> Any:
        return _apply(law, tuple(options.items()), *arrays)

    return function


class Arrays(Layers, Optimizing):
    """JAX's, which also take NumPy's arrays."""

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        return _apply(law, tuple(options.items()), *arrays)

    def float32(self, name: str, x: Any) -> Any:
        return as_float32(x, name)

    def integers(self, name: str, x: Any) -> Any:
        return as_integers(x, name)
