"""Training of the MLP in NumPy: forward and backward by hand, from the laws alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np

from benchmarks.training_models.recipes import recipe_for
from benchmarks.training_models.sizes import HIDDEN
from benchmarks.training_models.state import MOMENTUM, ROUNDING, initial, key_for
from benchmarks.training_models.trainings import TRAININGS
from qcore import fold_in, reproducible
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry
from qcore.linalg.product import Product, Products
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary import ELEMENTARY
from qcore.reproducible.elementwise import ADD
from qcore.reproducible.norms import CROSS_ENTROPY
from qcore.reproducible.operations import Names

_GEOMETRY, _WIDE = MatrixGeometry(transposed=True), Product()
_SHAPES = {"hidden.weight": (HIDDEN, 64), "hidden.bias": (HIDDEN,), "out.weight": (10, HIDDEN), "out.bias": (10,)}


class NumpyRun:
    """A run of training of the MLP; see `benchmarks.training_models.torch_run.TorchRun`."""

    def __init__(self, arithmetic: str) -> None:
        self._weights = {name: initial(name, np.zeros(shape, np.float32)) for name, shape in _SHAPES.items()}
        self._velocities = {name: np.zeros_like(x) for name, x in self._weights.items()}
        recipe = recipe_for("mlp", arithmetic)
        self._products: Any = Products(_WIDE, _WIDE, _WIDE) if recipe is None else recipe.products_for("out", "linear")

    def step(self, step: int, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Trains on a batch."""
        keys = {name: fold_in(key_for(ROUNDING, step), crc32(name.encode())) for name in ("hidden", "out")}
        hidden = self._linear("hidden", inputs, keys)
        active, relu = self._apply(ELEMENTARY["relu"], hidden)
        logits = self._linear("out", active, keys)
        loss, saved = self._apply(CROSS_ENTROPY, logits, targets, axis=1)
        gradient = CROSS_ENTROPY.gradients(Names, saved, np.ones((), np.float32), {"axis": 1})[0]
        found, gradient = self._gradients("out", active, gradient, keys)
        gradient = ELEMENTARY["relu"].gradients(Names, relu, gradient, {})[0]
        gradients = found | self._gradients("hidden", inputs, gradient, keys)[0]
        self._seen = {"loss": loss, "logits": logits} | {f"gradient {name}": x for name, x in gradients.items()}
        for name, x in gradients.items():
            state = (self._weights[name], x, self._velocities[name], np.float32(TRAININGS["mlp"].rate))
            self._weights[name], self._velocities[name] = reproducible.sgd_step(*state, momentum=MOMENTUM)

    @staticmethod
    def _apply(law: Differentiable, *arrays: Any, **options: Any) -> Any:
        return law.run(Names, arrays, options)

    def _linear(self, layer: str, x: np.ndarray, keys: Any) -> np.ndarray:
        weight = self._weights[f"{layer}.weight"]
        y = multiply_arrays(_GEOMETRY, FORWARD, self._products.forward, x, weight, weight.shape, keys[layer])
        return reproducible.add(y.reshape(len(x), -1), self._weights[f"{layer}.bias"])

    def _gradients(self, layer: str, x: np.ndarray, gradient: np.ndarray, keys: Any) -> tuple[Any, np.ndarray]:
        """Those of weight and bias, and that of x."""
        weight, bias = self._weights[f"{layer}.weight"], self._weights[f"{layer}.bias"]
        gradient, of_bias = ADD.gradients(Names, self._apply(ADD, gradient, bias)[1], gradient, {})
        grad_a, grad_b, key = self._products.grad_a, self._products.grad_b, keys[layer]
        of_weight = multiply_arrays(_GEOMETRY, GRAD_B, grad_b, gradient, x, weight.shape, key).reshape(weight.shape)
        of_x = multiply_arrays(_GEOMETRY, GRAD_A, grad_a, gradient, weight, x.shape, key).reshape(x.shape)
        return {f"{layer}.weight": of_weight, f"{layer}.bias": of_bias}, of_x

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters by name."""
        return self._weights

    def intermediates(self) -> dict[str, np.ndarray]:
        """What the last step had before it was rounded: the loss, the logits and the gradients."""
        return self._seen

    def state(self) -> dict[str, np.ndarray]:
        """All that the rest of the run needs."""
        return self._weights | {f"optimizer momentum_buffer {name}": x for name, x in self._velocities.items()}

    def load(self, step: int, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state after so many steps."""
        self._weights = {name: state[name] for name in _SHAPES}
        self._velocities = {name: state[f"optimizer momentum_buffer {name}"] for name in _SHAPES}
