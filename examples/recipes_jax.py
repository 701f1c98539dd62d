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
from examples.recipes import LENGTH, LETTERS, LOSS_SCALE, Step, batches, main
from qcore import Recipe
from qjax.recipes import first_scaling, lower


class Lowered(nnx.Module):
    """A model whose layers multiply as a recipe says, each time with another key.

    Args:
        model: the model.
        recipe: the recipe.
        inputs: an input of the model, of which only the shape counts.
        rngs: for keys.
    """

    def __init__(self, model: nnx.Module, recipe: Recipe, inputs: np.ndarray, rngs: nnx.Rngs) -> None:
        self.model = model
        self.recipe = recipe
        self.keys = rngs.quantize.fork()
        function, state = self._lowered()
        states = first_scaling(function, state, inputs) if recipe.delayed else ()
        self.scaling = nnx.List([nnx.Param(one) for one in states])

    def _lowered(self) -> tuple[Any, Any]:
        """The lowered function of the model's state and inputs, and the state."""
        graph, state = nnx.split(self.model)

        def forward(state: Any, inputs: jax.Array) -> tuple[jax.Array, Any]:
            model: Any = nnx.merge(graph, state, copy=True)
            return model(inputs), nnx.state(model, nnx.BatchStat)

        return lower(forward, self.recipe), state

    def __call__(self, inputs: jax.Array) -> jax.Array:
        function, state = self._lowered()
        scaling = {"scaling": [one[...] for one in self.scaling]} if self.recipe.delayed else {}
        outputs, statistics = function(state, inputs, key=self.keys(), **scaling)
        nnx.update(self.model, statistics)
        return outputs


def _kinds(params: Any) -> Any:
    """For each parameter "scaling", if it is a state of delayed scales, else "weights"."""
    return jax.tree.map_with_path(lambda path, _: "scaling" if path[0].key == "scaling" else "weights", params)


def _apply(params: Any, updates: Any, _: Any) -> Any:
    """Weights and their updates; states of delayed scales are their own updates."""
    return jax.tree.map(
        lambda kind, one, update: update if kind == "scaling" else one + update, _kinds(params), params, updates
    )


def trainer(name: str, recipe: Recipe | None, seed: int) -> Step:
    """The steps of a model, which begin with the same weights for all recipes."""
    rngs, unscaled = nnx.Rngs(seed), optax.scale(1 / LOSS_SCALE)
    if name == "gpt":
        model: Any = GPT(LETTERS, LENGTH, rngs=rngs)
        tx = optax.chain(unscaled, optax.adam(2e-3))
    else:
        model = PreResNet20(rngs=rngs)
        tx = optax.chain(unscaled, optax.add_decayed_weights(5e-4), optax.sgd(0.05, momentum=0.9))
    if recipe is not None:
        model = Lowered(model, recipe, next(batches(name, seed))[0], rngs)
        tx = optax.transforms.partition({"weights": tx, "scaling": optax.identity()}, _kinds)
    made = Trainer(model, tx, loss_scale=LOSS_SCALE, apply=plain_updates if recipe is None else _apply)

    def step(inputs: np.ndarray, targets: np.ndarray) -> jax.Array:
        made.state, (loss, _) = made.step(made.state, inputs, targets)
        return loss

    return step


if __name__ == "__main__":
    main(__doc__, "jax", trainer, None)
