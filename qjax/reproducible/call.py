"""Laws as functions that JAX differentiates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.layers import Layers
from qcore.numerics.optimizers.functions import Optimizing
from qjax._rounding.inputs import as_array, as_integers
from qjax._rounding.scopes import LAW
from qjax.reproducible.array_names import Names

Options = tuple[tuple[str, Any], ...]


@partial(jax.jit, static_argnums=(0, 1))
def _run(law: Differentiable, options: Options, *arrays: Any) -> Any:
    return law.run(Names, arrays, dict(options))


@partial(jax.jit, static_argnums=(0, 1))
def _gradients(law: Differentiable, options: Options, saved: Any, gradient: Any) -> Any:
    return law.gradients(Names, saved, gradient, dict(options))


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
        known = isinstance(x, (jax.Array, np.ndarray, np.generic))
        if not known or x.dtype != jnp.float32:
            kind = f"an array of {x.dtype}" if known else f"a {type(x).__name__}"
            raise TypeError(f"{name} is {kind}; allowed is a jax.Array or NumPy array of float32")
        return as_array(x)

    def integers(self, name: str, x: Any) -> Any:
        return as_integers(x, name)
