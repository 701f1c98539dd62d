"""A small GPT of letters, in JAX (flax nnx): two blocks of attention and two linear layers each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

_INIT = nnx.initializers.normal(0.02)


class Ordinary:
    """The functions between layers as JAX has them. `qjax.reproducible` has the same names, with defined bits."""

    add, relu = staticmethod(jnp.add), staticmethod(jax.nn.relu)
    chunk, mean = staticmethod(jnp.split), staticmethod(jnp.mean)

    @staticmethod
    def gelu(x: jax.Array, approximate: str) -> jax.Array:
        return jax.nn.gelu(x, approximate == "tanh")

    @staticmethod
    def scaled_dot_product_attention(query: Any, key: Any, value: Any, is_causal: bool) -> jax.Array:
        parts = (part.swapaxes(-3, -2) for part in (query, key, value))
        return jax.nn.dot_product_attention(*parts, is_causal=is_causal).swapaxes(-3, -2)


def linear(inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, kernel_init=_INIT, rngs=rngs)


def norm(width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)


def named(name: str, layer: Any, x: jax.Array) -> jax.Array:
    """What a layer makes of x, in the name scope by which `lower` and records know the layer."""
    with jax.named_scope(name):
        return layer(x)


class Attention(nnx.Module):
    """Causal attention by heads; its projections are linear layers."""

    def __init__(self, width: int, heads: int, functions: Any, rngs: nnx.Rngs) -> None:
        self.qkv = linear(width, 3 * width, rngs)
        self.out = linear(width, width, rngs)
        self.heads = heads
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        parts = self.functions.chunk(named("qkv", self.qkv, x), 3, -1)
        heads = (part.reshape(*x.shape[:-1], self.heads, -1).swapaxes(-3, -2) for part in parts)
        found = self.functions.scaled_dot_product_attention(*heads, is_causal=True)
        return named("out", self.out, found.swapaxes(-3, -2).reshape(x.shape))


class Block(nnx.Module):
    """Attention and two linear layers, each after normalization, around which the input is added."""

    def __init__(self, width: int, heads: int, functions: Any, rngs: nnx.Rngs) -> None:
        self.norm1 = norm(width, rngs)
        self.attention = Attention(width, heads, functions, rngs)
        self.norm2 = norm(width, rngs)
        self.up = linear(width, 4 * width, rngs)
        self.down = linear(4 * width, width, rngs)
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.functions.add(x, named("attention", self.attention, self.norm1(x)))
        hidden = self.functions.gelu(named("up", self.up, self.norm2(x)), approximate="tanh")
        return self.functions.add(x, named("down", self.down, hidden))


class GPT(nnx.Module):
    """Logits of the next letter, of shape (batch, length, letters) (Radford et al., 2019, at a small size).

    Args:
        letters: how many there are.
        length: of the longest text.
        width: of the residual stream.
        heads: of attention.
        depth: the number of blocks.
        functions: those between layers: `Ordinary`, or `qjax.reproducible`.
        rngs: for the weights.
    """

    def __init__(
        self,
        letters: int,
        length: int,
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
        functions: Any = Ordinary,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.letters = nnx.Embed(letters, width, embedding_init=_INIT, rngs=rngs)
        self.places = nnx.Embed(length, width, embedding_init=_INIT, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, functions, rngs) for _ in range(depth)])
        self.norm = norm(width, rngs)
        self.head = linear(width, letters, rngs)
        self.functions = nnx.static(functions)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.functions.add(self.letters(text), self.places(jnp.arange(text.shape[1])))
        for index, block in enumerate(self.blocks):
            x = named(f"blocks.{index}", block, x)
        return named("head", self.head, self.norm(x))
