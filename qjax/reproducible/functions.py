"""Laws as functions that JAX differentiates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from qcore.binding import JAX
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.muon import MuonFunctions
from qjax import linalg
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import as_float32, as_integers
from qjax._rounding.keys import key_words
from qjax._rounding.scopes import LAW
from qjax.reproducible.operations import Names, UnroundedNames

Options = tuple[tuple[str, Any], ...]


@partial(jax.jit, static_argnums=(0, 1))
def _run(law: Differentiable, options: Options, *arrays: Any) -> Any:
    return law.run(Names, arrays, dict(options))


@partial(jax.jit, static_argnums=(0, 1))
def _run_gradients(law: Differentiable, options: Options, saved: Any, gradient: Any) -> Any:
    return law.gradients(Names, saved, gradient, dict(options))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradients(law: Differentiable, options: Options, saved: Any, arrays: Any, gradient: Any) -> Any:
    """The gradients with defined bits, with the derivatives of `Differentiable.smooth_gradients`."""
    return _run_gradients(law, options, saved, gradient)


def _gradients_forward(law: Differentiable, options: Options, *given: Any) -> tuple[Any, Any]:
    return _gradients(law, options, *given), given


def _gradients_backward(law: Differentiable, options: Options, given: Any, second: Any) -> Any:
    return _pulled_back(_Smooth(law, options), given, second)


_gradients.defvjp(_gradients_forward, _gradients_backward)


@dataclass(frozen=True)
class _Smooth:
    """(saved, arrays, gradient) -> the gradients of a law, of float64 arrays."""

    law: Differentiable
    options: Options

    def __call__(self, saved: Any, arrays: Any, gradient: Any) -> Any:
        return self.law.smooth_gradients(UnroundedNames, arrays, saved, gradient, dict(self.options))


@dataclass(frozen=True)
class _Pullback:
    """(arguments, v) -> the gradients of a function's arguments, for the gradient v of its result; all are float64."""

    function: Any

    def __call__(self, arguments: Any, v: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        places = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]

        def of_floats(*floats: Any) -> Any:
            whole = list(leaves)
            for i, x in zip(places, floats, strict=True):
                whole[i] = x
            return self.function(*jax.tree.unflatten(tree, whole))

        found: list[Any] = [None] * len(leaves)
        for i, x in zip(places, jax.vjp(of_floats, *(leaves[i] for i in places))[1](v), strict=True):
            found[i] = x
        return jax.tree.unflatten(tree, found)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pulled_back(function: Any, arguments: Any, v: Any) -> Any:
    """`_Pullback` of float32 arrays, with derivatives of every order."""
    return _run_pullback(function, arguments, v)


@partial(jax.jit, static_argnums=0)
def _run_pullback(function: Any, arguments: Any, v: Any) -> Any:
    # JAX would differentiate float64 outside of the context that allows it: so all is done in here.
    with Names.arithmetic():
        found = _Pullback(function)(*jax.tree.map(partial(_cast, dtype=jnp.float64), (arguments, v)))
        return jax.tree.map(partial(_cast, dtype=jnp.float32), found)


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _pulled_back_forward(function: Any, *given: Any) -> tuple[Any, Any]:
    return _pulled_back(function, *given), given


def _pulled_back_backward(function: Any, given: Any, v: Any) -> Any:
    return _pulled_back(_Pullback(function), given, v)


_pulled_back.defvjp(_pulled_back_forward, _pulled_back_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _kept(law: Differentiable, options: Options, *arrays: Any) -> tuple[Any, Any]:
    """The result of a law, and the saved arrays; only the result has derivatives."""
    return _run(law, options, *arrays)


def _kept_forward(law: Differentiable, options: Options, *arrays: Any) -> tuple[Any, Any]:
    found: Any = _kept(law, options, *arrays)
    return found, (found[1], () if law.by_pieces else arrays)


def _kept_backward(law: Differentiable, options: Options, kept: Any, gradients: Any) -> Any:
    return _gradients(law, options, *kept, gradients[0])


_kept.defvjp(_kept_forward, _kept_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(law: Differentiable, options: Options, *arrays: Any) -> Any:
    with jax.named_scope(LAW):
        return _run(law, options, *arrays)[0]


def _forward(law: Differentiable, options: Options, *arrays: Any) -> tuple[Any, Any]:
    result, kept = _kept_forward(law, options, *arrays)
    return result[0], kept


def _backward(law: Differentiable, options: Options, kept: Any, gradient: Any) -> Any:
    return _gradients(law, options, *kept, gradient)


_apply.defvjp(_forward, _backward)


def differentiable(law: Differentiable) -> Callable[..., Any]:
    """The function (*arrays, **options) of a law, whose gradients are the law's."""

    def function(*arrays: Any, **options: Any) -> Any:
        return _apply(law, tuple(options.items()), *arrays)

    return function


class Arrays(MuonFunctions, package=__name__.rpartition(".")[0], words=JAX):
    """The functions of JAX arrays, which also take NumPy's arrays."""

    xp, linalg = Names, linalg

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        return _apply(law, tuple(options.items()), *arrays)

    def float32(self, name: str, x: Any) -> Any:
        return as_float32(x, name)

    def integers(self, name: str, x: Any) -> Any:
        return as_integers(x, name)

    def number(self, value: float, like: jax.Array) -> jax.Array:
        return jnp.float32(value)

    def detached(self, x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(x)

    def bools(self, name: str, x: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if dtype != jnp.bool_:
            came = f"a {type(x).__name__}" if dtype is None else f"an array of {dtype}"
            raise TypeError(f"{name} is {came}; allowed is a JAX or NumPy array of bools")
        return jnp.asarray(x)

    def known(self, x: jax.Array) -> float | None:
        known = not isinstance(x, Tracer) and all(device.platform == "cpu" for device in x.devices())
        return float(x) if known and x.is_fully_addressable else None

    def rounded(self, x: jax.Array, number: Any) -> jax.Array:
        return quantize(x, number)

    def constants(self, array: np.ndarray, like: jax.Array) -> jax.Array:
        return jnp.asarray(array)

    def key_words(self, key: Any) -> jax.Array:
        return key_words(key)


FUNCTIONS = Arrays()
