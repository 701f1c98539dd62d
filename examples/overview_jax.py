"""What QPyTorch's functionality overview shows, on `qjax`: formats, gradients, optimizers, whole functions.

    python -m examples.overview_jax

After the overview, its logistic regression is trained on images, in full and in low precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.data import Data, load
from examples.models_jax import Trainer, fit, plain_updates
from examples.report import Epoch, arguments, finish, follow
from qjax import BlockFloatingPoint, FixedPoint, FloatingPoint, quantize, quantizer, recipes
from qjax.optim import accumulators, apply_updates, low_precision

forward_num = FixedPoint(wl=4, fl=2)
backward_num = FloatingPoint(exp=5, man=2)
low = FloatingPoint(exp=5, man=2)  # of weights and gradients
high = FloatingPoint(exp=6, man=9)  # of momenta and accumulators

Params = dict[str, jax.Array]


def linear(params: Params, x: jax.Array) -> jax.Array:
    return x @ params["weight"] + params["bias"]


def new_params(seed: int) -> Params:
    weight, bias = jax.random.split(jax.random.key(seed))
    limit = 5**-0.5
    return {
        "weight": jax.random.uniform(weight, (5, 1), minval=-limit, maxval=limit),
        "bias": jax.random.uniform(bias, (1,), minval=-limit, maxval=limit),
    }


def quantization(seed: int) -> None:
    """Three kinds of formats, two ways of rounding."""
    x = jax.random.uniform(jax.random.key(seed), (5,))
    print(f"Full Precision: {x}")
    print(f"Low Precision: {quantize(x, low, 'nearest')}")
    print(f"Nearest: {quantize(x, low, 'nearest')}")
    print(f"Stochastic: {quantize(x, low, 'stochastic', key=seed)}")
    print(f"Fixed point: {quantize(x, FixedPoint(wl=4, fl=2), 'nearest')}")
    print(f"Block floating point: {quantize(x, BlockFloatingPoint(wl=4), 'nearest')}")


def gradients(params: Params, seed: int) -> Params:
    """Formats of their own for values and for gradients; returns the gradients."""
    rounded = quantizer(forward_num, backward_num, forward_rounding="nearest", backward_rounding="stochastic")
    x = jax.random.uniform(jax.random.key(seed), (5,))

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        output = rounded(linear(params, x), key=seed)
        return optax.sigmoid_binary_cross_entropy(output, jnp.zeros(1)).mean(), output

    grads, output = jax.grad(loss, has_aux=True)(params)
    print(f"Low Precision Output: {output}")
    return grads


def optimization(params: Params, grads: Params) -> None:
    """Weights, gradients and momenta in low precision."""
    tx = low_precision(optax.sgd(0.1, momentum=0.9), weight_quant=low, grad_quant=low, momentum_quant=high)
    print(f"Weight before optimizer stepping: \n{params['weight'].T}\n")
    updates, state = tx.update(grads, tx.init(params), params)
    print(f"Weight after optimizer stepping: \n{apply_updates(params, updates, state)['weight'].T}\n")


def accumulation(params: Params, grads: Params) -> None:
    """Steps that add up in accumulators of higher precision, from which the weights are rounded."""
    tx = low_precision(optax.sgd(0.1), weight_quant=low, grad_quant=low, momentum_quant=high, acc_quant=high)
    print(f"Weight before optimizer stepping: \n{params['weight'].T}\n")
    updates, state = tx.update(grads, tx.init(params), params)
    print(f"after stepping, high precision accumulator : \n{accumulators(state)['weight'].T}\n")
    print(f"after stepping, low precision weight : \n{apply_updates(params, updates, state)['weight'].T}\n")


def helper(params: Params, seed: int) -> None:
    """A low-precision function from a full-precision one."""
    lowered = recipes.lower(linear, ["linear"], forward_number=forward_num, backward_number=backward_num)
    x = jax.random.uniform(jax.random.key(seed), (5,))
    print(f"Full Precision Output: {linear(params, x)}")
    print(f"Low Precision Output: {lowered(params, x, key=seed)}")


class Regression(nnx.Module):
    """Logistic regression on images."""

    def __init__(self, quant: Any, rngs: nnx.Rngs) -> None:
        self.W = nnx.Linear(3 * 32 * 32, 10, rngs=rngs)
        self.quant = quant

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.quant(self.W(images.reshape(len(images), -1)))


def train(data: Data, epochs: int, seed: int, lowered: bool) -> Iterator[Epoch]:
    tx = optax.sgd(1e-4, momentum=0.9)
    quant = quantizer(FixedPoint(wl=8, fl=4), backward_num, "nearest", "nearest") if lowered else quantizer()
    if lowered:
        tx = low_precision(tx, weight_quant=low, grad_quant=low, momentum_quant=high, acc_quant=high)
    apply = apply_updates if lowered else plain_updates
    return fit(Trainer(Regression(quant, nnx.Rngs(seed)), tx, apply=apply), data, epochs, seed)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 10, argv)
    params = new_params(options.seed)
    quantization(options.seed)
    grads = gradients(params, options.seed)
    optimization(params, grads)
    accumulation(params, grads)
    helper(params, options.seed)
    data = load(options.limit)
    curves = [
        follow(name, train(data, options.epochs, options.seed, lowered))
        for name, lowered in (("fp32", False), ("low precision", True))
    ]
    finish(f"Logistic regression on {data.name}, JAX", curves, options.plot or "overview_jax.svg")


if __name__ == "__main__":
    main()
