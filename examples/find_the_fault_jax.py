"""A network with a fault that low precision makes deadly, and the table that names the layer, in JAX.

    python -m examples.find_the_fault_jax overflow
    python -m examples.find_the_fault_jax vanish --plot page.svg

The network and the faults are those of `examples.find_the_fault_torch`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from examples.command import console, file_of, parsed, parser_of
from examples.gpt_jax import named
from qcore.insight import findings
from qjax.insight import Record, cross_entropy, draw, print_worst, watch
from qjax.recipes import lower

FAULTS = {"overflow": (5000.0, 1.0), "vanish": (1.0, 1e-7)}  # factors of loud's weights, and of quiet's output
SHAPES = {"first": (64, 32), "loud": (32, 32), "quiet": (32, 32), "head": (32, 10)}


def logits(params: Any, quietness: float, x: Any) -> jax.Array:
    """Two branches between two layers."""

    def layer(name: str, x: Any) -> jax.Array:
        return named(name, lambda x: x @ params[name], x)

    x = jax.nn.relu(layer("first", x))
    return layer("head", jax.nn.relu(layer("loud", x) + layer("quiet", x) * quietness))


def record(fault: str, steps: int = 3) -> Record:
    """The record of some steps of training."""
    loudness, quietness = FAULTS[fault]
    images, labels = load_digits(return_X_y=True)
    images, random = np.float32(images / 16), np.random.default_rng(0)
    params = {name: jnp.float32(random.uniform(-1, 1, shape) / shape[0] ** 0.5) for name, shape in SHAPES.items()}
    params["loud"] = params["loud"] * loudness

    def loss(params: Any, x: Any, y: Any) -> jax.Array:
        return cross_entropy(logits(params, quietness, x), y)

    lowered = lower(loss, ["linear"], "e4m3fn", "e5m2", "nearest", "nearest")
    step = jax.jit(watch(jax.grad(lowered)))
    found = Record(f"net with {fault}")
    for index in range(steps):
        part = slice(64 * index, 64 * index + 64)
        grads, statistics = step(params, images[part], labels[part])
        found.add_all(index, statistics)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("fault", choices=FAULTS, help="what is planted: too large outputs, or too small gradients")
    parser.add_argument("--plot", type=file_of(".svg"), metavar="FILE", help="draw a page of pictures, .svg")
    options = parsed(parser, argv)
    found = record(options.fault)
    print_worst(found)
    worst = findings(found)[0]
    console.print(f"The worst site is {worst.site} in {worst.statistics.number}: {worst.advice}.", style="bold")
    if options.plot:
        draw(found, options.plot)
        console.print(f"pictures saved to {options.plot}")


if __name__ == "__main__":
    main()
