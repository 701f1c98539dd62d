"""A first day in JAX: one network of nnx, of linen and of equinox trains in FP8 to the same bits, and is quantized."""

from collections.abc import Callable
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

import qjax
from qjax.nnx import from_torch, quantize_model, to_torch
from qjax.recipes import lower

GENERATOR = np.random.default_rng(0)
UP, DOWN = (GENERATOR.normal(0, 0.3, shape).astype(np.float32) for shape in ((8, 16), (16, 1)))
DATA = GENERATOR.standard_normal((64, 8)).astype(np.float32)
TARGETS = DATA[:, :1] * DATA[:, 1:2]


class OfNnx(nnx.Module):
    def __init__(self) -> None:
        self.up, self.down = (nnx.Linear(*w.shape, use_bias=False, rngs=nnx.Rngs(0)) for w in (UP, DOWN))

    def __call__(self, x: Any) -> Any:
        return self.down(nnx.relu(self.up(x)))


class OfLinen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.relu(linen.Dense(16, use_bias=False, name="up")(x))
        return linen.Dense(1, use_bias=False, name="down")(x)


class OfEquinox(equinox.Module):
    up: equinox.nn.Linear
    down: equinox.nn.Linear

    def __call__(self, x: Any) -> Any:
        return self.down(jax.nn.relu(self.up(x)))


def trained(model: Any, apply: Callable[[Any, Any], Any]) -> tuple[Any, float]:
    """A model after ten steps of plain gradients in mxfp8, and the first loss over the last."""

    def loss(model: Any) -> Any:
        return jnp.mean((apply(model, DATA) - TARGETS) ** 2)

    step = jax.jit(jax.value_and_grad(lower(loss, qjax.RECIPES["mxfp8"])))
    losses = []
    for _ in range(10):
        value, gradients = step(model)
        losses.append(float(value))
        model = jax.tree.map(lambda w, g: w - g / 8, model, gradients)
    return model, losses[0] / losses[-1]


def main() -> None:
    assert qjax.quantize(jnp.float32([0.1241, 500]), "e4m3fn:saturate").tolist() == [0.125, 448]
    own = OfNnx()
    own.up.kernel[...], own.down.kernel[...] = UP, DOWN
    graph, weights = nnx.split(own)
    of_nnx, gain = trained(weights, lambda weights, x: nnx.merge(graph, weights)(x))
    of_linen, _ = trained(
        {"up": {"kernel": UP}, "down": {"kernel": DOWN}}, lambda p, x: OfLinen().apply({"params": p}, x)
    )
    keys = jax.random.split(jax.random.key(0))
    linears = [equinox.nn.Linear(*w.shape, use_bias=False, key=key) for w, key in zip((UP, DOWN), keys, strict=True)]
    linears = [equinox.tree_at(lambda one: one.weight, one, w.T) for one, w in zip(linears, (UP, DOWN), strict=True)]
    of_equinox, _ = trained(OfEquinox(*linears), lambda model, x: jax.vmap(model)(x))
    own = nnx.merge(graph, of_nnx)
    assert gain > 1.5, gain
    for name in ("up", "down"):
        ours = np.asarray(getattr(own, name).kernel[...])
        for other in (of_linen[name]["kernel"], getattr(of_equinox, name).weight.T):
            assert (ours.view(np.int32) == np.asarray(other).view(np.int32)).all(), name
    small = quantize_model(own, calibrate=[DATA])
    np.savez("small.npz", **to_torch(small))
    again = from_torch(quantize_model(own, calibrate=[DATA[:1]]), dict(np.load("small.npz")))
    assert (np.asarray(small(DATA)) == np.asarray(again(DATA))).all()
    error = float(jnp.abs(small(DATA) - own(DATA)).max())
    assert error < 0.05, error
    print(f"nnx, linen and equinox have the same weights in mxfp8; int8 is off by {error:.3f} at most")


if __name__ == "__main__":
    main()
