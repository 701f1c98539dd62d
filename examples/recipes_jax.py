"""Published recipes of low-precision training, and accumulators of many widths, in JAX.

    python -m examples.recipes_jax
    python -m examples.recipes_jax --model preresnet20 --recipe fp32 hfp8 --steps 100

The models, the data and the recipes are those of `examples.recipes_torch`; the programs are lowered as they are.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from examples.gpt_jax import GPT
from examples.models_jax import PreResNet20, Trainer, plain_updates
from examples.recipes import LENGTH, LETTERS, LOSS_SCALE, Step, main
from qcore import Recipe
from qjax.auto_low import lower


class Lowered(nnx.Module):
    """A model whose layers multiply as a recipe says, each time with another key."""

    def __init__(self, model: nnx.Module, recipe: Recipe, rngs: nnx.Rngs) -> None:
        self.model = model
        self.recipe = recipe
        self.keys = rngs.quantize.fork()

    def __call__(self, inputs: jax.Array) -> jax.Array:
        graph, state = nnx.split(self.model)

        def forward(state: Any, inputs: jax.Array) -> tuple[jax.Array, Any]:
            model: Any = nnx.merge(graph, state, copy=True)
            return model(inputs), nnx.state(model, nnx.BatchStat)

        outputs, statistics = lower(forward, self.recipe)(state, inputs, key=self.keys())
        nnx.update(self.model, statistics)
        return outputs


def trainer(name: str, recipe: Recipe | None, seed: int) -> Step:
    """The steps of a model, which begin with the same weights for all recipes."""
    rngs, unscaled = nnx.Rngs(seed), optax.scale(1 / LOSS_SCALE)
    if name == "gpt":
        model: Any = GPT(LETTERS, LENGTH, rngs=rngs)
        tx = optax.chain(unscaled, optax.adam(2e-3))
    else:
        model = PreResNet20(rngs=rngs)
        tx = optax.chain(unscaled, optax.add_decayed_weights(5e-4), optax.sgd(0.05, momentum=0.9))
    made = Trainer(
        model if recipe is None else Lowered(model, recipe, rngs), tx, loss_scale=LOSS_SCALE, apply=plain_updates
    )

    def step(inputs: np.ndarray, targets: np.ndarray) -> jax.Array:
        made.state, (loss, _) = made.step(made.state, inputs, targets)
        return loss

    return step


if __name__ == "__main__":
    main(__doc__, "jax", trainer, None)
