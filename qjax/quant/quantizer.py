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
from qjax.dispatch import check_array, quantize, same_bits
from qjax.keys import Key, fold_in, key_words


@dataclass(frozen=True)
class QuantizeFunction(Quantization):
    """What `quantizer` returns: its arguments, called with an array. Hashable, comparable and picklable as they are."""

    def __call__(self, x: jax.Array, key: Key = None) -> jax.Array:
        """Rounds x, and the gradient on its way back.

        Args:
            x: array of any shape; float32, float16, bfloat16 or, where x64 is enabled, float64.
            key: for stochastic rounding, see `quantize`; may be traced. Gradients use fold_in(key, 1).

        Returns:
            An array of x's shape, dtype and sharding.

        Raises:
            TypeError: if an argument has the wrong type.
            ValueError: if an argument is out of range, or stochastic rounding has no key.
        """
        check_array(x)
        if key is None and self.stochastic:
            raise missing_key()
        return _apply(self, x, None if key is None else key_words(key).view(np.uint32))


def quantizer(
    forward_number: Number | str | None = None,
    backward_number: Number | str | None = None,
    forward_rounding: str | Rounding = "stochastic",
    backward_rounding: str | Rounding = "stochastic",
    clamping_grad_zero: bool = False,
    backward_hooks: Iterable[Callable[[Any], Any]] = (),
) -> QuantizeFunction:
    """Makes a function that rounds arrays to one format and their gradients to another.

    The gradient of a call is the incoming one after each of the hooks, rounded, and then zero where the forward
    rounding clamped: where x, rounded with the same random word but no range, lies beyond the range. Gradients of
    higher order go the same way.

    Args:
        forward_number, backward_number: a format or its name; None leaves the values, or the gradients, as they are.
        forward_rounding, backward_rounding: names or members of `Rounding`.
        clamping_grad_zero: whether gradients are zero where a clamping `FixedPoint` clamped; forward_number must then
            be a `FixedPoint` or None.
        backward_hooks: functions of the gradient, applied in this order before it is rounded.

    Returns:
        A pure function f(x, key=None), with the bits of qtorch's for the same key.

    Raises:
        TypeError, ValueError: if an argument is not as above.

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
    return QuantizeFunction(*arguments, clamping_grad_zero, backward_hooks)  # type: ignore[arg-type]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(rule: Quantization, x: jax.Array, key: Any) -> jax.Array:
    return x if rule.forward_number is None else quantize(x, rule.forward_number, rule.forward_rounding, key=key)


def _forward(rule: Quantization, x: jax.Array, key: Any) -> tuple[jax.Array, tuple[Any, Any]]:
    y: Any = _apply(rule, x, key)  # again with this gradient, for gradients of gradients
    if rule.unclamped is None:
        return y, (key, None)
    return y, (key, same_bits(y, quantize(x, rule.unclamped, rule.forward_rounding, key=key)))


def _backward(rule: Quantization, saved: tuple[Any, Any], grad: jax.Array) -> tuple[jax.Array, None]:
    key, inside = saved
    for hook in rule.backward_hooks:
        grad = hook(grad)
    if rule.backward_number is not None:
        key = None if key is None else fold_in(key, 1)
        grad = quantize(grad, rule.backward_number, rule.backward_rounding, key=key)
    return grad if inside is None else jnp.where(inside, grad, jnp.zeros_like(grad)), None


_apply.defvjp(_forward, _backward)
