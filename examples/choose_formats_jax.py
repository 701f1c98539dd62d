"""Formats for each layer of a small GPT and of PreResNet20, by what the loss becomes, in JAX.

    python -m examples.choose_formats_jax
    python -m examples.choose_formats_jax --model gpt --budget 4.5

The models and data are those of `examples.choose_formats_torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from examples.choosing import Batch, choose_all
from examples.gpt_jax import GPT
from examples.models_jax import PreResNet20, Trainer, plain_updates
from examples.recipes import LENGTH, LETTERS, batches
from examples.text import load
from qcore import Recipe
from qjax.insight import choose_formats, cross_entropy
from qjax.recipes import lower

Model = Callable[[Any], jax.Array]


def train(name: str, steps: int, seed: int) -> Model:
    """A model trained in float32, as a function of inputs."""
    rngs = nnx.Rngs(seed)
    model: Any = GPT(LETTERS, LENGTH, rngs=rngs) if name == "gpt" else PreResNet20(rngs=rngs)
    trainer = Trainer(model, optax.adam(2e-3), cross_entropy, apply=plain_updates)
    for inputs, targets in islice(batches(name, seed, load()), steps):
        trainer.state, _ = trainer.step(trainer.state, inputs, targets)
    params, statistics, _ = trainer.state
    model.eval()
    return nnx.merge(nnx.graphdef(model), params, statistics)


def lowered(model: Model, recipe: Recipe) -> Model:
    return lower(model, recipe)


def loss_of(model: Model, data: list[Batch]) -> float:
    return float(np.mean([cross_entropy(model(inputs), targets) for inputs, targets in data]))


def main(argv: list[str] | None = None) -> None:
    choose_all(__doc__, "jax", train, choose_formats, lowered, loss_of, argv)


if __name__ == "__main__":
    main()
