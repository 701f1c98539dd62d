"""Published recipes of low-precision training, and accumulators of many widths, in JAX.

    python -m examples.recipes_jax
    python -m examples.recipes_jax --model preresnet20 --recipe fp32 bfp8 --seeds 0 1 2
    python -m examples.recipes_jax --recipe 'accumulator(float(6,3),chunk=16)' --steps 100

The models, the data, the recipes and the bits are those of `examples.recipes_torch`: both end in the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from examples.gpt_jax import GPT
from examples.models_jax import PreResNet20
from examples.recipes import LENGTH, LETTERS, LOSS_SCALE, WEIGHTS, train_all
from qcore import Recipe
from qjax import reproducible
from qjax.reproducible.optimizers import AdamState


class JaxTrainer:
    """A model whose layers multiply by a recipe, and its optimizer.

    Args:
        name: "gpt" or "preresnet20".
        recipe: the recipe; None for float32.
        seed: of the weights, which do not depend on the recipe.
    """

    def __init__(self, name: str, recipe: Recipe | None, seed: int) -> None:
        rngs: Any = nnx.Rngs(0)  # flax wants some weights; initialize gives the model others
        if name == "gpt":
            model: Any = GPT(LETTERS, LENGTH, functions=reproducible, rngs=rngs)
            self.optimizer = reproducible.adam()
        else:
            model = PreResNet20(functions=reproducible, rngs=rngs)
            self.optimizer = reproducible.sgd(momentum=0.9, weight_decay=5e-4)
        reproducible.initialize(model, (seed, WEIGHTS))
        self.model = reproducible.convert(model, recipe)
        self.model.eval()
        self.tested = nnx.graphdef(self.model)
        self.model.train()
        self.trained, self.params, self.rest = nnx.split(self.model, nnx.Param, ...)
        self.state: Any = self.optimizer.init(self.params)

    def step(self, rate: np.float32, key: tuple[int, int], inputs: np.ndarray, targets: np.ndarray) -> jax.Array:
        state, words = (self.params, self.rest, self.state), np.array(key, np.uint32)
        (self.params, self.rest, self.state), loss = self._step(state, rate, words, inputs, targets)
        return loss

    @partial(jax.jit, static_argnums=0)
    def _step(self, state: Any, rate: Any, key: Any, inputs: Any, targets: Any) -> Any:
        params, rest, slots = state
        gradients, (rest, loss) = jax.grad(self._loss, has_aux=True)(params, rest, key, inputs, targets)
        gradients = jax.tree.map(lambda one: reproducible.multiply(one, jnp.float32(1 / LOSS_SCALE)), gradients)
        params, slots = self.optimizer.step(params, gradients, slots, rate)
        return (params, rest, slots), loss

    def _loss(self, params: Any, rest: Any, key: Any, inputs: Any, targets: Any) -> Any:
        model: Any = nnx.merge(self.trained, params, rest, copy=True)
        reproducible.set_key(model, key)
        outputs = model(inputs)
        loss = reproducible.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))
        rest = nnx.split(model, nnx.Param, ...)[2]
        return reproducible.multiply(loss, jnp.float32(LOSS_SCALE)), (rest, loss)

    def outputs(self, key: tuple[int, int], inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self._outputs(self.params, self.rest, np.array(key, np.uint32), inputs))

    @partial(jax.jit, static_argnums=0)
    def _outputs(self, params: Any, rest: Any, key: Any, inputs: Any) -> jax.Array:
        model: Any = nnx.merge(self.tested, params, rest, copy=True)
        reproducible.set_key(model, key)
        return model(inputs)

    def weights(self) -> dict[str, np.ndarray]:
        return self._named(self.params)

    def slots(self) -> list[dict[str, np.ndarray]]:
        trees = [self.state.first, self.state.second] if isinstance(self.state, AdamState) else [self.state]
        return [{name: x for name, x in self._named(tree).items() if "running_" not in name} for tree in trees]

    def load(self, step: int, weights: Mapping[str, np.ndarray], slots: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.params, self.rest = self._variables(weights)
        trees = [self._variables({**weights, **slot})[0] for slot in slots]
        self.state = AdamState(jnp.float32(step), *trees) if isinstance(self.state, AdamState) else trees[0]

    def _named(self, params: Any) -> dict[str, np.ndarray]:
        """Arrays of the parameters' tree by the names of torch."""
        model: Any = nnx.merge(self.trained, params, self.rest, copy=True)
        return {name: np.asarray(x) for name, x in reproducible.state_dict(model).items()}

    def _variables(self, named: Mapping[str, Any]) -> Any:
        """Arrays by name as variables of the model: parameters, and the rest."""
        model: Any = nnx.merge(self.trained, self.params, self.rest, copy=True)
        reproducible.load_state_dict(model, named)
        return nnx.split(model, nnx.Param, ...)[1:]


def main(argv: list[str] | None = None) -> None:
    train_all(__doc__, "jax", JaxTrainer, argv)


if __name__ == "__main__":
    main()
