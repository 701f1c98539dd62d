"""The models of `torch_models` in flax.nnx, with the same names."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.training_models.sizes import CONTEXT, HEADS, HIDDEN, LAYERS, WIDTH, WIDTHS


class MLP(nnx.Module):
    """One hidden layer, for images of 8x8."""

    def __init__(self, functions: Any, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, 10, rngs=rngs)
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.functions.relu(self.hidden(x)))


class ResidualBlock(nnx.Module):
    """Two convolutions, each after normalization and ReLU, around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int, functions: Any, rngs: nnx.Rngs) -> None:
        self.bn1 = normalization(inputs, rngs)
        self.conv1 = convolution(inputs, outputs, 3, rngs, stride)
        self.bn2 = normalization(outputs, rngs)
        self.conv2 = convolution(outputs, outputs, 3, rngs)
        self.shortcut = nnx.data(None if inputs == outputs else convolution(inputs, outputs, 1, rngs, stride))
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.conv1(self.functions.relu(self.bn1(x)))
        y = self.conv2(self.functions.relu(self.bn2(y)))
        return self.functions.add(y, x if self.shortcut is None else self.shortcut(x))


class PreResNet20(nnx.Module):
    """He et al., "Identity Mappings in Deep Residual Networks", 2016, with 20 layers, for grey images of 8x8."""

    def __init__(self, functions: Any, rngs: nnx.Rngs) -> None:
        self.conv = convolution(1, WIDTHS[0], 3, rngs)
        sizes = [(inputs, outputs, 1 if inputs == outputs else 2) for inputs, outputs in pairwise(WIDTHS)]
        self.blocks = nnx.List([ResidualBlock(*size, functions, rngs) for size in sizes])
        self.bn = normalization(WIDTHS[-1], rngs)
        self.fc = nnx.Linear(WIDTHS[-1], 10, rngs=rngs)
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.conv(x.reshape(-1, 8, 8, 1))
        for block in self.blocks:
            x = block(x)
        x = jnp.moveaxis(self.functions.relu(self.bn(x)), -1, 1)
        return self.fc(self.functions.avg_pool2d(x, 2).reshape(len(x), -1))


def convolution(inputs: int, outputs: int, size: int, rngs: nnx.Rngs, stride: int = 1) -> nnx.Conv:
    window = {"kernel_size": (size, size), "strides": stride, "padding": size // 2}
    return nnx.Conv(inputs, outputs, **window, use_bias=False, rngs=rngs)


def normalization(features: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(features, momentum=0.9, rngs=rngs)


class TransformerBlock(nnx.Module):
    """Causal attention and an MLP, each after normalization, around which the input is added."""

    def __init__(self, functions: Any, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.projection = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.hidden = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.out = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        functions = self.functions
        parts = functions.chunk(self.attention(self.norm1(x)), 3, -1)
        query, key, value = (part.reshape(batch, length, HEADS, -1).swapaxes(1, 2) for part in parts)
        y = functions.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = functions.add(x, self.projection(y.swapaxes(1, 2).reshape(batch, length, WIDTH)))
        return functions.add(x, self.out(functions.gelu(self.hidden(self.norm2(x)), approximate="tanh")))


class GPT(nnx.Module):
    """A language model of letters, as Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.

    Args:
        letters: how many there are.
        functions: the namespace of functions between layers.
        rngs: for weights.
    """

    def __init__(self, letters: int, functions: Any, rngs: nnx.Rngs) -> None:
        self.letters = nnx.Embed(letters, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        self.blocks = nnx.List([TransformerBlock(functions, rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.head = nnx.Linear(WIDTH, letters, use_bias=False, rngs=rngs)
        self.functions = nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.functions.add(self.letters(x), self.positions(jnp.arange(x.shape[1])))
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


class Plain:
    """JAX's own functions, for the ordinary float32 step."""

    relu, add = staticmethod(jax.nn.relu), staticmethod(jnp.add)

    @staticmethod
    def avg_pool2d(x: jax.Array, kernel_size: int) -> jax.Array:
        batch, channels, height, width = x.shape
        size = (batch, channels, height // kernel_size, kernel_size, width // kernel_size, kernel_size)
        return x.reshape(size).mean((3, 5))

    @staticmethod
    def chunk(x: jax.Array, chunks: int, dim: int) -> list[jax.Array]:
        return jnp.split(x, chunks, dim)

    @staticmethod
    def gelu(x: jax.Array, approximate: str) -> jax.Array:
        return jax.nn.gelu(x, approximate == "tanh")

    @staticmethod
    def scaled_dot_product_attention(query: Any, key: Any, value: Any, is_causal: bool) -> jax.Array:
        parts = (jnp.swapaxes(part, 1, 2) for part in (query, key, value))
        return jnp.swapaxes(jax.nn.dot_product_attention(*parts, is_causal=is_causal), 1, 2)
