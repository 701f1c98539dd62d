"""A small GPT of letters, in JAX (flax nnx): two blocks of attention and two linear layers each."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

_INIT = nnx.initializers.normal(0.02)


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

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.qkv = linear(width, 3 * width, rngs)
        self.out = linear(width, width, rngs)
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        parts = named("qkv", self.qkv, x).reshape(*x.shape[:-1], 3, self.heads, -1)
        found = jax.nn.dot_product_attention(*(parts[..., i, :, :] for i in range(3)), is_causal=True)
        return named("out", self.out, found.reshape(x.shape))


class Block(nnx.Module):
    """Attention and two linear layers, each after normalization, around which the input is added."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norm1 = norm(width, rngs)
        self.attention = Attention(width, heads, rngs)
        self.norm2 = norm(width, rngs)
        self.up = linear(width, 4 * width, rngs)
        self.down = linear(4 * width, width, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + named("attention", self.attention, self.norm1(x))
        return x + named("down", self.down, nnx.gelu(named("up", self.up, self.norm2(x))))


class GPT(nnx.Module):
    """Logits of the next letter, of shape (batch, length, letters) (Radford et al., 2019, at a small size).

    Args:
        letters: how many there are.
        length: of the longest text.
        width: of the residual stream.
        heads: of attention.
        depth: the number of blocks.
        rngs: for the weights.
    """

    def __init__(
        self, letters: int, length: int, width: int = 64, heads: int = 4, depth: int = 2, *, rngs: nnx.Rngs
    ) -> None:
        self.letters = nnx.Embed(letters, width, embedding_init=_INIT, rngs=rngs)
        self.places = nnx.Embed(length, width, embedding_init=_INIT, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(depth)])
        self.norm = norm(width, rngs)
        self.head = linear(width, letters, rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.letters(text) + self.places.embedding[...][: text.shape[1]]
        for index, block in enumerate(self.blocks):
            x = named(f"blocks.{index}", block, x)
        return named("head", self.head, self.norm(x))
