"""Different formats for values and for their gradients: QPyTorch's `quantizer` as a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number, Quantization, Rounding
from qcore.arguments import missing_key
from qcore.formats.number import call_text
from qcore.law.rounding import RoundingLike
from qcore.linalg.scaling import is_delayed, next_rows, round_delayed
from qjax._rounding.dispatch import quantize, same_bits
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.keys import Key, fold_in, key_words
from qjax._rounding.meshes import on_meshes
from qjax._rounding.scopes import UNWATCHED, kind_scope
from qjax.linalg.namespace import Float64
from qjax.linalg.states import ScalingState, read, rows_of, tally


@dataclass(frozen=True, repr=False)
class QuantizeFunction(Quantization):
    """The function that `quantizer` returns; hashable, comparable and picklable if its arguments are."""

    def __repr__(self) -> str:
        return "quantizer" + call_text(self).removeprefix(type(self).__name__)

    def __call__(self, x: ArrayLike, key: Key = None, scaling: jax.Array | ScalingState | None = None) -> jax.Array:
        """Rounds x, and its gradient in the backward pass; see `qjax.quantize` for x, key, the result and errors.

        The key may be traced. Gradients use fold_in(key, 1). Delayed scales (`BlockScaled(history=)`) need their state,
        which begins as `first_scaling(history)[:2]` of `qjax.linalg`, of shape (2, 1 + history); the gradient with
        respect to it is the next state.
        """
        x = as_array(x)
        if key is None and self.stochastic:
            raise missing_key()
        scaling = None if scaling is None else rows_of(scaling)
        given = None if scaling is None else (scaling.shape, str(read(scaling).dtype))
        expected = None if self.history is None else ((2, 1 + self.history), "float32")
        if given != expected:
            raise ValueError(f"scaling has shape and dtype {given}; allowed is {expected}, by the format's history")
        if scaling is not None:
            if x.dtype != jnp.float32:
                raise TypeError(f"x has dtype {x.dtype}; allowed is float32 with a delayed scale")
            words = None if key is None else key_words(key).view(np.uint32)
            return on_meshes(partial(_delayed, self), lambda: jax.typeof(x).sharding, x, words, scaling)
        linear = self.backward_number is None and not self.backward_hooks
        return (_linear if linear else _apply)(self, x, None if key is None else key_words(key).view(np.uint32))


def quantizer(
    forward_number: Number | str | None = None,
    backward_number: Number | str | None = None,
    forward_rounding: RoundingLike = "stochastic",
    backward_rounding: RoundingLike = "stochastic",
    clamping_grad_zero: bool = False,
    backward_hooks: Iterable[Callable[[jax.Array], jax.Array]] = (),
    overflow: str | None = None,
) -> QuantizeFunction:
    """Makes a function that rounds arrays to one format and their gradients to another.

    The backward pass applies the hooks to the gradient, rounds it, and sets it to 0 where the forward pass clamped:
    where x, rounded with the same random word but without a range, is out of range. So do gradients of higher order.

    Forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) pass tangents straight through and set them to 0
    where the forward pass clamped. They exist only where gradients are neither rounded nor given to hooks; otherwise
    JAX raises a TypeError.

    Args:
        forward_number, backward_number, forward_rounding, backward_rounding: see `qcore.Quantization`.
        clamping_grad_zero, backward_hooks, overflow: see `qcore.Quantization`.

    Returns:
        A pure function f(x, key=None), with the same bits as qtorch's for the same key.

    Raises:
        TypeError, ValueError: as `qcore.Quantization`; f raises ValueError if it rounds stochastically without a key.

    Example:
        >>> from qjax import FixedPoint
        >>> f = quantizer(FixedPoint(4, 2), "e5m2", "nearest", "nearest", clamping_grad_zero=True)
        >>> x = jnp.float32([0.3, -0.3, 9.0])
        >>> f(x)
        Array([ 0.25, -0.25,  1.75], dtype=float32)
        >>> jax.grad(lambda x: (1.1 * f(x)).sum())(x)
        Array([1., 1., 0.], dtype=float32)
    """
    arguments: tuple[Any, ...] = (forward_number, backward_number, forward_rounding, backward_rounding)
    return QuantizeFunction(*arguments, clamping_grad_zero, backward_hooks, overflow)  # type: ignore[arg-type]


def _round(rule: Quantization, x: jax.Array, key: Any) -> jax.Array:
    return x if rule.forward_number is None else quantize(x, rule.forward_number, rule.forward_rounding, key=key)


def _inside(rule: Quantization, x: jax.Array, y: jax.Array, key: Any) -> jax.Array | None:
    """True for elements that were not clamped; None if gradients are not masked."""
    if rule.unclamped is None:
        return None
    with jax.named_scope(UNWATCHED):
        return same_bits(y, quantize(x, rule.unclamped, rule.forward_rounding, key=key))


def _masked(grad: jax.Array, inside: jax.Array | None) -> jax.Array:
    return grad if inside is None else jnp.where(inside, grad, jnp.zeros_like(grad))


_linear = jax.custom_jvp(_round, nondiff_argnums=(0,))


@_linear.defjvp
def _derivative(rule: Quantization, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    """The masked tangent; JAX transposes it to the masked gradient."""
    y = _linear(rule, *primals)
    return y, _masked(tangents[0], _inside(rule, primals[0], y, primals[1]))


_apply = jax.custom_vjp(_round, nondiff_argnums=(0,))


def _forward(rule: Quantization, x: jax.Array, key: Any) -> tuple[jax.Array, tuple[Any, Any]]:
    y: Any = _apply(rule, x, key)  # with this derivative again, for gradients of gradients
    return y, (key, _inside(rule, x, y, key))


def _backward(rule: Quantization, saved: tuple[Any, Any], grad: jax.Array) -> tuple[jax.Array, None]:
    key, inside = saved
    hooks: Any = rule.backward_hooks  # of JAX arrays
    for hook in hooks:
        grad = hook(grad)
    if rule.backward_number is not None:
        key = None if key is None else fold_in(key, 1)
        with kind_scope("gradient"):
            grad = quantize(grad, rule.backward_number, rule.backward_rounding, key=key)
    return _masked(grad, inside), None


_apply.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _delayed(rule: Quantization, x: jax.Array, key: Any, state: jax.Array) -> jax.Array:
    """Rounding with delayed scales, whose derivative with respect to their state is the next state."""
    return _by_scale(x, rule.forward_number, rule.forward_rounding, key, read(state)[0, 0])


@partial(jax.jit, static_argnums=(1, 2))
def _by_scale(x: jax.Array, number: Number | None, rounding: Rounding, key: Any, scale: jax.Array) -> jax.Array:
    if number is None or not is_delayed(number):
        return x if number is None else quantize(x, number, rounding, key=key)

    def round_element(y: jax.Array, element: Number) -> jax.Array:
        with jax.enable_x64(False):
            return quantize(y, element, rounding, key=key)

    with jax.enable_x64(True):
        return round_delayed(Float64, x, number, scale, round_element)  # type: ignore[arg-type]


def _delayed_forward(rule: Quantization, x: jax.Array, key: Any, state: jax.Array) -> tuple[jax.Array, Any]:
    return _delayed(rule, x, key, state), (x, key, state)


def _delayed_backward(rule: Quantization, saved: Any, grad: jax.Array) -> tuple[Any, ...]:
    x, key, state = saved
    hooks: Any = rule.backward_hooks  # of JAX arrays
    for hook in hooks:
        grad = hook(grad)
    key = None if key is None else fold_in(key, 1)
    with kind_scope("gradient"):
        rounded = _by_scale(grad, rule.backward_number, rule.backward_rounding, key, read(state)[1, 0])
    return rounded, None, tally(partial(_next_state, rule), state, x, grad)


def _next_state(rule: Quantization, state: jax.Array, x: jax.Array, grad: jax.Array) -> jax.Array:
    with jax.enable_x64(True):
        return jnp.stack(next_rows(Float64, state, (x, grad), rule.delayed))


_delayed.defvjp(_delayed_forward, _delayed_backward)
