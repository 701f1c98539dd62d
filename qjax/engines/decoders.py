"""What flax's attention would do silently beside an engine: it raises while a function is traced."""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer


@contextmanager
def guarded_attention(is_ours: Callable[[], bool]) -> Iterator[None]:
    """The context in which flax's own softmax, and writing beyond its caches, are refused, if flax was imported.

    Args:
        is_ours: False in another thread, whose layers stay as they are.
    """
    with ExitStack() as stack:
        for name in ("flax.nnx.nn.attention", "flax.linen.attention"):
            module: Any = sys.modules.get(name)
            if module is not None:
                before = module.dot_product_attention_weights
                stack.callback(setattr, module, "dot_product_attention_weights", before)
                module.dot_product_attention_weights = _refusing(before, is_ours)
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None:
            kind = nnx.MultiHeadAttention
            stack.callback(setattr, kind, "__call__", kind.__call__)
            kind.__call__ = _of_nnx(kind.__call__, is_ours)
        linen = sys.modules.get("flax.linen")
        if linen is not None:
            stack.enter_context(linen.intercept_methods(_interceptor(linen.MultiHeadDotProductAttention)))
        yield


def _refusing(before: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    @wraps(before)
    def call(*arguments: Any, **options: Any) -> Any:
        if is_ours():
            raise ValueError(
                "flax computes its attention without jax.nn.dot_product_attention here; allowed are layers without "
                "dropout_rate and sow_weights, and in linen attention_fn=flax.nnx.dot_product_attention"
            )
        return before(*arguments, **options)

    return call


def _of_nnx(before: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    """The method of the attention of nnx."""

    @wraps(before)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        run, decode = partial(before, self, *arguments, **options), options.get("decode")
        decode = self.decode if decode is None else decode
        if not is_ours() or not decode or self.cache_index is None:
            return run()
        return _within(self.cache_index[...], self.cached_key.shape[-3], run)

    return call


def _interceptor(base: type) -> Callable[..., Any]:
    """What stands for the method of linen's attention; flax keeps it per thread."""

    def call(method: Callable[..., Any], arguments: Any, options: Any, context: Any) -> Any:
        run, layer = partial(method, *arguments, **options), context.module
        if (
            type(layer) is not base
            or context.method_name != "__call__"
            or not layer.has_variable("cache", "cache_index")
        ):
            return run()
        cache = layer.variables["cache"]
        return _within(cache["cache_index"], cache["cached_key"].shape[-3], run)

    return call


def _within(index: Any, length: int, run: Callable[[], Any]) -> Any:
    """The result of attention that writes at an index of its cache: flax writes over the last token of a full one."""
    if not isinstance(index, Tracer) and int(index) >= length:
        raise ValueError(f"the cache of flax's attention has {length} tokens, and all are written; allowed is more")
    found = run()
    # A program cannot raise: what it computes beyond the cache is NaN.
    return jnp.where(index < length, found, jnp.nan) if isinstance(index, Tracer) else found
