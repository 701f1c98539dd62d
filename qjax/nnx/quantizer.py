"""`qjax.quantizer` as a module of flax nnx."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
from flax import nnx

from qcore import Number
from qcore.arguments import quoted
from qcore.law.rounding import RoundingLike
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.keys import Key
from qjax.quant import quantizer


class Quantizer(nnx.Module):
    """A module that rounds values to one format and their gradients to another; see `qjax.quantizer`.

    Without a key, a stochastic call takes the next key of the module's own stream of random numbers, as `nnx.Dropout`
    does. The stream is forked from "quantize" of `rngs`, or from its default stream.

    Args:
        forward_number, backward_number, forward_rounding, backward_rounding: as for `qjax.quantizer`.
        clamping_grad_zero, backward_hooks, overflow: as for `qjax.quantizer`.
        rngs: the source of keys for stochastic calls without a key.

    Example:
        >>> import jax.numpy as jnp
        >>> q = Quantizer("e5m2", rngs=nnx.Rngs(0))
        >>> q(jnp.full(5, 1.1))
        Array([1.  , 1.25, 1.  , 1.25, 1.  ], dtype=float32)
        >>> q(jnp.full(5, 1.1))
        Array([1.  , 1.  , 1.  , 1.25, 1.  ], dtype=float32)
    """

    def __init__(
        self,
        forward_number: Number | str | None = None,
        backward_number: Number | str | None = None,
        forward_rounding: RoundingLike = "stochastic",
        backward_rounding: RoundingLike = "stochastic",
        clamping_grad_zero: bool = False,
        backward_hooks: Iterable[Callable[[jax.Array], jax.Array]] = (),
        overflow: str | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if not isinstance(rngs, nnx.Rngs | None):
            raise TypeError(f"rngs={quoted(rngs)} is a {type(rngs).__name__}; allowed are nnx.Rngs and None")
        arguments = (forward_number, backward_number, forward_rounding, backward_rounding)
        self.function = quantizer(*arguments, clamping_grad_zero, backward_hooks, overflow)
        self.rngs = nnx.data(None)
        if rngs is not None and self.function.stochastic:
            self.rngs = rngs.quantize.fork()

    def __call__(self, x: ArrayLike, key: Key = None) -> jax.Array:
        """Rounds x, and the gradient on its way back, as `qjax.quantizer`'s functions do."""
        if key is None and self.rngs is not None:
            key = self.rngs()
        return self.function(x, key)
