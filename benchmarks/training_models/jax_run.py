"""Training in JAX, with and without jit, on one device and on several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.training_models import jax_models
from benchmarks.training_models.data import LETTERS
from benchmarks.training_models.recipes import recipe_for
from benchmarks.training_models.state import MOMENTUM, RATE, ROUNDING, initial, key_for
from qjax import reproducible
from qjax.reproducible.optimizers import AdamState


def make_model(model: str, functions: Any) -> nnx.Module:
    """A model with its initial numbers, as flax computes it."""
    rngs, kinds = nnx.Rngs(0), {"mlp": jax_models.MLP, "preresnet20": jax_models.PreResNet20}
    made = jax_models.GPT(LETTERS, functions, rngs) if model == "gpt" else kinds[model](functions, rngs)
    state = {name: np.asarray(x) for name, x in reproducible.state_dict(made).items()}
    reproducible.load_state_dict(made, {name: initial(name, x) for name, x in state.items()})
    return made


class JaxRun:
    """A run of training.

    Args:
        model, arithmetic: what is trained, and how products are rounded; None is the ordinary float32 of JAX.
        jit: False runs operation by operation; a law is one operation.
        devices: over how many devices a batch is split.
    """

    def __init__(self, model: str, arithmetic: str | None, jit: bool = True, devices: int = 1) -> None:
        plain = arithmetic is None
        made = make_model(model, jax_models.Plain if plain else reproducible)
        if arithmetic is not None:
            made = reproducible.convert(made, recipe_for(model, arithmetic))
        self._arithmetic = arithmetic
        self._graph, self._params, self._rest = nnx.split(made, nnx.Param, ...)
        self._tx: Any = _optax(model) if plain else _optimizer(model)
        self._slots = self._tx.init(self._params)
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        self._parts, self._whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (("data",), ()))
        self._train = jax.jit(self._step) if jit else self._step

    def _step(self, params: Any, rest: Any, slots: Any, key: Any, inputs: Any, targets: Any) -> Any:
        grads, (rest, *seen) = jax.grad(self._loss, has_aux=True)(params, rest, key, inputs, targets)
        if self._arithmetic is None:
            updates, slots = self._tx.update(grads, slots, params)
            params = optax.apply_updates(params, updates)
        else:
            params, slots = self._tx.step(params, grads, slots)
        return params, rest, slots, (*seen, grads)

    def _loss(self, params: Any, rest: Any, key: Any, inputs: Any, targets: Any) -> Any:
        model: Any = nnx.merge(self._graph, params, rest, copy=True)
        if self._arithmetic is not None:
            reproducible.set_key(model, key)
        logits = model(inputs)
        rows, labels = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        if self._arithmetic is None:
            loss = optax.softmax_cross_entropy_with_integer_labels(rows, labels).mean()
        else:
            loss = reproducible.cross_entropy(rows, labels)
        return loss, (nnx.split(model, nnx.Param, ...)[2], loss, logits)

    def step(self, step: int, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Trains on a batch."""
        batch = (jax.device_put(x, self._parts) for x in (inputs, targets))
        key = jnp.array(key_for(ROUNDING, step), jnp.uint32)
        state = jax.device_put((self._params, self._rest, self._slots, key), self._whole)
        self._params, self._rest, self._slots, self._seen = self._train(*state, *batch)

    def results(self) -> Any:
        """The arrays of the last step, to wait for."""
        return self._params, self._rest, self._slots

    def _named(self, params: Any) -> dict[str, np.ndarray]:
        model = nnx.merge(self._graph, params, self._rest)
        return {name: np.asarray(x) for name, x in reproducible.state_dict(model).items()}

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters and statistics by name."""
        return self._named(self._params)

    def intermediates(self) -> dict[str, np.ndarray]:
        """What the last step had before it was rounded: the loss, the logits and the gradients."""
        loss, logits, grads = self._seen
        found = {"loss": np.asarray(loss), "logits": np.asarray(logits)}
        return found | {f"gradient {name}": x for name, x in self._named(grads).items() if "running_" not in name}

    def state(self) -> dict[str, np.ndarray]:
        """All that the rest of the run needs."""
        found = self.weights()
        for number, slot in enumerate(_trees(self._slots)):
            named = self._named(slot).items()
            found |= {f"optimizer {number} {name}": x for name, x in named if "running_" not in name}
        return found

    def load(self, step: int, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state after so many steps."""
        weights = {name: x for name, x in state.items() if not name.startswith("optimizer")}
        self._params, self._rest = self._variables(weights)
        slots = []
        for number, _ in enumerate(_trees(self._slots)):
            named = {name: state.get(f"optimizer {number} {name}", x) for name, x in weights.items()}
            slots.append(self._variables(named)[0])
        self._slots = slots[0] if len(slots) == 1 else AdamState(jnp.float32(step), *slots)

    def _variables(self, named: Mapping[str, Any]) -> Any:
        """Arrays by name as variables of the model: parameters, and the rest."""
        model = nnx.merge(self._graph, self._params, self._rest, copy=True)
        reproducible.load_state_dict(model, named)
        return nnx.split(model, nnx.Param, ...)[1:]


def _trees(slots: Any) -> list[Any]:
    """The trees of arrays that an optimizer keeps."""
    return [slots.first, slots.second] if hasattr(slots, "second") else [slots]


def _optimizer(model: str) -> Any:
    if model == "gpt":
        return reproducible.adamw(RATE[model])
    return reproducible.sgd(RATE[model], MOMENTUM)


def _optax(model: str) -> Any:
    return optax.adamw(RATE[model], weight_decay=0.01) if model == "gpt" else optax.sgd(RATE[model], MOMENTUM)
