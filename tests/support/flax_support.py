"""Modules of flax whose first weights NumPy draws: XLA compiles their distribution for half a second a shape."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

run = nnx.jit(lambda model, x: model(x))  # one program; without jit XLA compiles one for each operation


def module_of(make):
    """The module that make() gives, with values of its own; `merge` puts its attributes in the order of their names."""
    graph, state = nnx.split(nnx.eval_shape(make))
    rng = np.random.default_rng(0)
    flat = {path: leaf.replace(_value(rng, path[-1], leaf.get_value())) for path, leaf in nnx.to_flat_state(state)}
    return nnx.merge(graph, nnx.from_flat_state(flat))


def layer_of(kind, *arguments, **settings):
    """A layer of flax, by its class and arguments, with values of its own."""
    return module_of(lambda: kind(*arguments, **settings, rngs=nnx.Rngs(0)))


def _value(rng, name, leaf):
    """What flax begins with, but kernels and tables by NumPy."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    if len(leaf.shape) > 1 and name != "bias":
        x = rng.standard_normal(leaf.shape) / np.sqrt(np.prod(leaf.shape[:-1]))
    else:
        x = np.full(leaf.shape, name in ("scale", "var"))
    return jax.device_put(x.astype(leaf.dtype))  # for `jnp.asarray` XLA compiles a program for each shape
