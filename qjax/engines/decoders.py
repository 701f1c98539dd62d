"""What flax's attention would do silently beside an engine: it raises while a function is traced."""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
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
            kind.__call__ = _within(kind.__call__, is_ours)
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


def _within(before: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    """The method of flax's attention, which writes over the last token where its cache is full."""

    @wraps(before)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        decode = options.get("decode")
        decode = self.decode if decode is None else decode
        if not is_ours() or not decode or self.cache_index is None:
            return before(self, *arguments, **options)
        index, length = self.cache_index[...], self.cached_key.shape[-3]
        if not isinstance(index, Tracer) and int(index) >= length:
            raise ValueError(
                f"the cache of MultiHeadAttention has {length} tokens, and all are written; allowed is more"
            )
        found = before(self, *arguments, **options)
        # A program cannot raise: what it computes beyond the cache is NaN.
        return jnp.where(index < length, found, jnp.nan) if isinstance(index, Tracer) else found

    return call
