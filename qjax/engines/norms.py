"""Flax's norms as an engine computes them, while a function is traced."""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from qcore.engines.engine import Engine
from qcore.engines.layers import rms_norm
from qcore.notices import warn
from qjax._rounding.dispatch import quantize
from qjax.engines.arrays import Attending

RMS_NORMS = "flax.nnx.RMSNorm", "flax.linen.RMSNorm"


@jax.custom_jvp
def _instead(computed: jax.Array, numbers: jax.Array) -> jax.Array:
    """(what a layer computes, its numbers by the engine) -> these numbers, with the derivatives of the layer."""
    return numbers


@_instead.defjvp
def _derivative(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return primals[1], tangents[0]


@contextmanager
def exchanged_norms(engine: Engine, is_ours: Callable[[], bool]) -> Iterator[None]:
    """The context in which an engine computes the norms of flax, if a program has imported it.

    Args:
        engine: the engine.
        is_ours: False in another thread, whose layers stay as they are.
    """
    nnx, linen = sys.modules.get("flax.nnx"), sys.modules.get("flax.linen")
    with ExitStack() as stack:
        if engine.norm is not None or engine.activations is not None:
            for kind in () if nnx is None else (nnx.RMSNorm, nnx.LayerNorm):
                stack.callback(setattr, kind, "__call__", kind.__call__)
                kind.__call__ = _by_engine(kind.__call__, engine, is_ours)
            if linen is not None:
                stack.enter_context(linen.intercept_methods(_interceptor(engine, (linen.RMSNorm, linen.LayerNorm))))
        yield


def _by_engine(before: Callable[..., Any], engine: Engine, is_ours: Callable[[], bool]) -> Callable[..., Any]:
    """The method of a norm of nnx."""

    def call(self: Any, x: Any, *others: Any, **options: Any) -> Any:
        computed = before(self, x, *others, **options)
        if not is_ours():
            return computed
        scale = None if getattr(self, "scale", None) is None else self.scale[...]
        masked = bool(others) or options.get("mask") is not None
        return _normed(engine, self, x, scale, computed, masked)

    return call


def _interceptor(engine: Engine, classes: tuple[type, ...]) -> Callable[..., Any]:
    """What stands for the methods of linen's norms; flax keeps it per thread."""

    def call(method: Callable[..., Any], arguments: Any, options: Any, context: Any) -> Any:
        computed = method(*arguments, **options)
        layer = context.module
        if type(layer) not in classes or context.method_name != "__call__":
            return computed
        scale = layer.get_variable("params", "scale") if layer.use_scale else None
        masked = len(arguments) > 1 or options.get("mask") is not None
        return _normed(engine, layer, arguments[0], scale, computed, masked)

    return call


def _normed(engine: Engine, layer: Any, x: Any, scale: Any, computed: jax.Array, masked: bool) -> jax.Array:
    """The result of one norm."""
    kind = type(layer).__name__
    last = layer.reduction_axes in (-1, (-1,)) and layer.feature_axes in (-1, (-1,))
    if engine.norm is not None and kind == "RMSNorm" and last and not masked and layer.axis_name is None:
        x = jax.lax.stop_gradient(jnp.asarray(x)).astype(jnp.float32)
        ones = jnp.ones(x.shape[-1:], jnp.float32)
        weight = ones if scale is None else jax.lax.stop_gradient(scale).astype(jnp.float32)
        with Attending.arithmetic():
            numbers = Attending.one_nan(rms_norm(Attending, x, weight, float(layer.epsilon), engine))
        return _instead(computed, numbers.astype(computed.dtype))
    if engine.norm is not None:
        law = "whose result alone is rounded" if kind == "LayerNorm" else "with a law of its own"
        warn(f"the engine does not define all of the model: norm: a {kind}, {law}")
    if engine.activations is None:
        return computed
    rounded = quantize(jax.lax.stop_gradient(computed).astype(jnp.float32), engine.activations)
    return _instead(computed, rounded.astype(computed.dtype))
