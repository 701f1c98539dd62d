"""A small GPT as one function for PyTorch and JAX, its GRPO loss, and a task: count on from the last number."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qcore.engines import Engine
from qcore.random import initial_state

VOCABULARY, WIDTH, LAYERS, HEADS, PLACES = 12, 32, 2, 2, 12
SHAPES = {"tokens.weight": (VOCABULARY, WIDTH), "places.weight": (PLACES, WIDTH), "norm.weight": (WIDTH,)}
SHAPES["head.weight"] = VOCABULARY, WIDTH
for layer in range(LAYERS):
    SHAPES |= {f"{layer}.{name}.weight": (WIDTH,) for name in ("norm", "norm2")}
    SHAPES |= {f"{layer}.qkv.weight": (3 * WIDTH, WIDTH), f"{layer}.out.weight": (WIDTH, WIDTH)}
    SHAPES |= {f"{layer}.up.weight": (2 * WIDTH, WIDTH), f"{layer}.down.weight": (WIDTH, 2 * WIDTH)}


class Framework(NamedTuple):
    """What the policy computes with.

    Attributes:
        functions: `qtorch.reproducible` or `qjax.reproducible`.
        attention: of `qtorch.engines` or `qjax.engines`.
        quantize: of `qtorch` or `qjax`.
    """

    functions: Any
    attention: Any
    quantize: Any


def first_weights(seed: int) -> dict[str, np.ndarray]:
    """The first weights, the same everywhere."""
    return initial_state(seed, SHAPES, ["tokens.weight", "places.weight"], [])


def logits(made: Framework, weights: Any, engine: Engine, operand: str | None, *texts: Any) -> Any:
    """The logits (batch, length, vocabulary) of texts: tokens, mask and positions, as `generate` calls a model.

    Args:
        made: the framework's functions.
        weights: arrays by name.
        engine: its attention and cache, and the format of activations.
        operand: the format of both operands of linear layers; None does not round.
        texts: tokens, mask and positions.
    """
    functions, (tokens, mask, positions) = made.functions, texts
    products = {} if operand is None else {"operands": (operand, operand)}

    def rounded(x: Any) -> Any:
        return x if engine.activations is None else made.quantize(x, engine.activations)

    def linear(x: Any, name: str) -> Any:
        return rounded(functions.linear(x, weights[f"{name}.weight"], **products))

    def norm(x: Any, name: str) -> Any:
        return rounded(functions.rms_norm(x, weights[f"{name}.weight"]))

    batch, length = tokens.shape
    shape = batch, length, HEADS, WIDTH // HEADS
    x = functions.embedding(tokens, weights["tokens.weight"])
    x = rounded(functions.add(x, functions.embedding(positions, weights["places.weight"])))
    for layer in range(LAYERS):
        qkv = linear(norm(x, f"{layer}.norm"), f"{layer}.qkv")
        q, k, v = (part.reshape(shape).swapaxes(1, 2) for part in functions.chunk(qkv, 3, -1))
        seen = made.attention(q, k, v, engine, mask=mask[:, None, None]).swapaxes(1, 2)
        x = rounded(functions.add(x, linear(seen.reshape((batch, length, WIDTH)), f"{layer}.out")))
        up = rounded(functions.gelu(linear(norm(x, f"{layer}.norm2"), f"{layer}.up")))
        x = rounded(functions.add(x, linear(up, f"{layer}.down")))
    return functions.linear(norm(x, "norm"), weights["head.weight"], **products)


def loss(made: Framework, logarithms: Any, tokens: Any, factors: Any) -> Any:
    """GRPO's loss: minus the mean of factor * log p over the tokens that were drawn.

    With one step for each rollout the ratio to the policy before the step is 1, and its gradient that of log p.

    Args:
        made: the framework's functions.
        logarithms: log-probabilities (batch, drawn, vocabulary).
        tokens: the tokens that were drawn (batch, drawn).
        factors: advantages, times what importance sampling gives each token (batch, drawn).
    """
    functions = made.functions
    chosen = functions.take_along_axis(logarithms, tokens[..., None], -1)[..., 0]
    return -functions.mean(functions.multiply(chosen, factors))


def reward(prompt: list[int], answer: list[int]) -> float:
    """The share of numbers that count on from the one before."""
    before = [prompt[-1], *answer[:-1]]
    return float(np.mean([(a + 1) % VOCABULARY == b for a, b in zip(before, answer, strict=True)]))


def advantages(rewards: np.ndarray, group: int) -> np.ndarray:
    """GRPO's advantages: rewards less their group's mean, divided by its deviation."""
    each = rewards.reshape(-1, group)
    found = (each - each.mean(1, keepdims=True)) / (each.std(1, keepdims=True) + 1e-4)
    return found.reshape(-1).astype(np.float32)
