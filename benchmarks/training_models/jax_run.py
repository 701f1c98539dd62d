"""Training in JAX, with and without jit, on one device and on several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from benchmarks.training_models.state import MOMENTUM, ROUNDING, initial, key_for
from benchmarks.training_models.trainings import TRAININGS, Training, is_for_muon
from qjax import optim, reproducible

_SLOTS = {"first": "exp_avg", "second": "exp_avg_sq", "momentum": "momentum_buffer"}  # of states, and torch's names
Arrays = dict[str, Any]


def make_model(network: str, functions: Any) -> nnx.Module:
    """A model with its initial numbers, as flax computes it."""
    rngs, kinds = nnx.Rngs(0), {"mlp": jax_models.MLP, "preresnet20": jax_models.PreResNet20}
    made = jax_models.GPT(LETTERS, functions, rngs) if network == "gpt" else kinds[network](functions, rngs)
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
        training, plain = TRAININGS[model], arithmetic is None
        made = make_model(training.network, jax_models.Plain if plain else reproducible)
        if arithmetic is not None:
            made = reproducible.convert(made, recipe_for(training.network, arithmetic))
        self._arithmetic = arithmetic
        self._graph, self._params, self._rest = nnx.split(made, nnx.Param, ...)
        self._tx: Any = _optax(training) if plain else _optimizer(training)
        self._slots = self._tx.init(self._params if plain else _parameters(self._named(self._params, self._rest)))
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        self._parts, self._whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (("data",), ()))
        self._train = jax.jit(self._step) if jit else self._step

    def _step(self, params: Any, rest: Any, slots: Any, key: Any, inputs: Any, targets: Any) -> Any:
        grads, (rest, *seen) = jax.grad(self._loss, has_aux=True)(params, rest, key, inputs, targets)
        if self._arithmetic is None:
            updates, slots = self._tx.update(grads, slots, params)
            params = optax.apply_updates(params, updates)
        else:
            # In torch's layouts: codes have scales of neighbours, and Muon's rate is that of rows and columns.
            named, slopes = self._named(params, rest), _parameters(self._named(grads, rest))
            stepped, slots = self._tx.step(_parameters(named), slopes, slots)
            params = self._variables(named | stepped, params, rest)[0]
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

    def _named(self, params: Any, rest: Any) -> Arrays:
        """Parameters and statistics by torch's names, in its layouts."""
        return reproducible.state_dict(nnx.merge(self._graph, params, rest, copy=True))

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters and statistics by name."""
        return {name: np.asarray(x) for name, x in self._named(self._params, self._rest).items()}

    def intermediates(self) -> dict[str, np.ndarray]:
        """What the last step had before it was rounded: the loss, the logits and the gradients."""
        loss, logits, grads = self._seen
        named = _parameters(self._named(grads, self._rest))
        found = {"loss": loss, "logits": logits} | {f"gradient {name}": x for name, x in named.items()}
        return {name: np.asarray(x) for name, x in found.items()}

    def state(self) -> dict[str, np.ndarray]:
        """All that the rest of the run needs."""
        return self.weights() | {name: np.asarray(x) for name, x in _flat(self._slots).items()}

    def load(self, step: int, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state after so many steps."""
        weights = {name: x for name, x in state.items() if not name.startswith("optimizer")}
        self._params, self._rest = self._variables(weights, self._params, self._rest)
        self._slots = _filled(self._slots, state, step)

    def _variables(self, named: Mapping[str, Any], params: Any, rest: Any) -> Any:
        """Arrays by name as variables of the model: parameters, and the rest."""
        model = nnx.merge(self._graph, params, rest, copy=True)
        reproducible.load_state_dict(model, named)
        return nnx.split(model, nnx.Param, ...)[1:]


def _parameters(named: Arrays) -> Arrays:
    """Without statistics."""
    return {name: x for name, x in named.items() if "running_" not in name}


def _named_slots(slots: Any) -> Iterator[tuple[str, Arrays]]:
    """The trees of arrays that an optimizer keeps, by torch's names."""
    if isinstance(slots, dict):
        yield "momentum_buffer", slots
    else:
        yield from ((_SLOTS[name], tree) for name, tree in slots._asdict().items() if name in _SLOTS and tree)


def _flat(slots: Any) -> Arrays:
    """The arrays of an optimizer's state, or of two optimizers', by names as those of torch's run."""
    if isinstance(slots, list):
        return _flat(slots[0]) | _flat(slots[1])
    found = {}
    for slot, tree in _named_slots(slots):
        for name, x in tree.items():
            codes, *scale = x if isinstance(x, optim.CodedArray) else (x,)
            found |= {f"optimizer {slot} {name}": codes} | {f"optimizer {slot}_scale {name}": one for one in scale}
    return found


def _filled(slots: Any, state: Mapping[str, np.ndarray], step: int) -> Any:
    """The inverse of `_flat`, in the form of other slots."""
    if isinstance(slots, list):
        return [_filled(one, state, step) for one in slots]

    def array(slot: str, name: str, like: Any) -> Any:
        found = jnp.asarray(state[f"optimizer {slot} {name}"])
        if isinstance(like, optim.CodedArray):
            return type(like)(found, jnp.asarray(state[f"optimizer {slot}_scale {name}"]))
        return found

    trees = [{name: array(slot, name, x) for name, x in tree.items()} for slot, tree in _named_slots(slots)]
    return trees[0] if isinstance(slots, dict) else type(slots)(jnp.float32(step), *trees)


class _Muon:
    """Muon for the matrices of a language model's blocks, and AdamW for the rest."""

    def __init__(self, rate: float) -> None:
        self._both: tuple[Any, Any] = optim.muon(rate), reproducible.adamw(TRAININGS["gpt"].rate)

    def init(self, params: Arrays) -> list[Any]:
        return [one.init(part) for one, part in zip(self._both, _divided(params), strict=True)]

    def step(self, params: Arrays, grads: Arrays, slots: list[Any]) -> tuple[Arrays, list[Any]]:
        parts = zip(self._both, _divided(params), _divided(grads), slots, strict=True)
        found = [one.step(*part) for one, *part in parts]
        return found[0][0] | found[1][0], [slots for _, slots in found]


def _divided(named: Arrays) -> list[Arrays]:
    return [{name: x for name, x in named.items() if is_for_muon(name) == wanted} for wanted in (True, False)]


def _optimizer(training: Training) -> Any:
    if training.optimizer == "SGD":
        return reproducible.sgd(training.rate, MOMENTUM)
    if training.optimizer == "AdamW":
        return reproducible.adamw(training.rate)
    return _Muon(training.rate) if training.optimizer == "Muon" else getattr(optim, training.optimizer)(training.rate)


def _optax(training: Training) -> Any:
    if training.optimizer == "SGD":
        return optax.sgd(training.rate, MOMENTUM)
    return optax.adamw(training.rate, weight_decay=0.01)
