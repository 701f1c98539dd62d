"""Attention modules of flax nnx by the functions of `qjax.reproducible`; parameters and their layouts are flax's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qjax.reproducible.training import FUNCTIONS


class MultiHeadAttention(nnx.MultiHeadAttention):
    """`nnx.MultiHeadAttention`: `linear`, `scaled_dot_product_attention` by heads, and `linear`.

    Where query, key and value are one array, one product projects it to all three.
    """

    def __call__(  # type: ignore[override]
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """The output.

        Args:
            inputs_q, inputs_k, inputs_v: as for flax's.
            mask: array of bools that broadcasts to (..., heads, L, S), True where a key counts.
            is_causal: True masks keys after the query's position.
        """
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        if is_causal:
            causal = jnp.tri(inputs_q.shape[-2], inputs_k.shape[-2], dtype=bool)
            mask = causal if mask is None else mask & causal
        heads = [self._heads(x) for x in self._projected(inputs_q, inputs_k, inputs_v)]
        y = FUNCTIONS.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask)
        y = y.swapaxes(-3, -2).reshape(*inputs_q.shape[:-1], -1)
        weight, bias = self.out.kernel[...], self.out.bias
        return FUNCTIONS.linear(y, weight.reshape(y.shape[-1], -1).T, None if bias is None else bias[...])

    def _projected(self, *given: jax.Array) -> Any:
        layers = (self.query, self.key, self.value)
        weights = [layer.kernel[...].reshape(self.in_features, -1).T for layer in layers]
        biases: Any = [None if layer.bias is None else layer.bias[...].reshape(-1) for layer in layers]
        if given[0] is given[1] and given[1] is given[2]:
            bias = None if biases[0] is None else jnp.concatenate(biases)
            return FUNCTIONS.chunk(FUNCTIONS.linear(given[0], jnp.concatenate(weights), bias), 3)
        return map(FUNCTIONS.linear, given, weights, biases)

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, -1).swapaxes(-3, -2)


def check_attention_layer(where: str, layer: nnx.MultiHeadAttention) -> None:
    """Raises ValueError for what `MultiHeadAttention` has not."""
    features = {layer.in_features, layer.qkv_features, layer.out_features, layer.in_kv_features}
    given = {
        "dropout_rate": layer.dropout_rate != 0,
        "normalize_qk": layer.normalize_qk,
        "decode": bool(layer.decode),
        "num_kv_heads": layer.num_kv_heads != layer.num_heads,
        "features of several sizes": len(features) > 1,
        "attention_fn": layer.attention_fn is not nnx.dot_product_attention,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{where} has {wrong[0]}, which has no defined bits here; allowed is the default")
