"""What the tests of qjax.optim share: parameters and gradients, keys by the law, and training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import qcore
from qjax import FloatingPoint, quantizer
from qjax.optim import apply_updates

F8, F16 = FloatingPoint(5, 2), FloatingPoint(6, 9)
KEY = 2**32 + 7
random = np.random.default_rng(0)
SHAPES = {"b": (5,), "a": (3, 200), "c": (5,), "d": ()}
LARGE = {"large": (2, 40000)}
P = {name: np.float32(random.standard_normal(shape)) for name, shape in SHAPES.items()}
G = [{name: np.float32(random.standard_normal(shape)) for name, shape in SHAPES.items()} for _ in range(3)]
NUMBER = {name: number for number, name in enumerate(sorted(SHAPES | LARGE))}
ROUNDED = {"weight_quant": quantizer(F8), "grad_quant": quantizer(F8, F16), "acc_quant": quantizer(F16)}
ROUNDED |= {"momentum_quant": quantizer(F16), "grad_scaling": 0.37, "key": KEY}


def tree(values):
    return jax.tree.map(jnp.asarray, values)


def role_key(step, role, name):
    return qcore.fold_in(qcore.fold_in(qcore.fold_in(KEY, step), role), NUMBER[name])


@functools.cache
def step_of(tx, apply, compiled):
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return apply(params, updates, *([state] if apply is apply_updates else [])), state

    return jax.jit(step) if compiled else step


def train(tx, params, state, gradients, apply=apply_updates, compiled=True):
    step = step_of(tx, apply, compiled)
    for grads in gradients:
        params, state = step(params, state, tree(grads))
    return params, state
