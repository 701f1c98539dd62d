"""Training that is killed, and resumed from its last checkpoint, ends with the bits of training that was not."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import assert_same_bits

# Trains until a given step and writes a checkpoint after each. All keys follow from one and the number of the step.
PROGRAM = """
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from qjax import FloatingPoint, quantizer
from qjax.optim import apply_updates, low_precision

low, high = (quantizer(FloatingPoint(*bits), FloatingPoint(*bits)) for bits in ((5, 2), (6, 9)))
schedule = optax.exponential_decay(0.05, 7, 0.9, staircase=True)
tx = low_precision(optax.sgd(schedule, momentum=0.9), low, low, 0.5, high, high, key=7)


def loss(params, x, y, key):
    hidden = jax.nn.relu(low(x @ params["w"] + params["b"], jax.random.fold_in(key, 0)))
    return jnp.square(high(hidden @ params["v"], jax.random.fold_in(key, 1)) - y).mean()


@jax.jit
def update(params, state, x, y):
    grads = jax.grad(loss)(params, x, y, jax.random.fold_in(jax.random.key(3), state.step))
    updates, state = tx.update(grads, state, params)
    return apply_updates(params, updates, state), state


def train(file, last):
    data = np.random.default_rng(0)
    shapes = {"w": (8, 32), "b": (32,), "v": (32, 4)}
    params = {name: jnp.asarray(data.standard_normal(shape, np.float32) / 4) for name, shape in shapes.items()}
    state = tx.init(params)
    leaves, tree = jax.tree.flatten((params, state))
    step = 0
    if os.path.exists(file):
        with np.load(file) as saved:
            step = int(saved["step"])
            params, state = jax.tree.unflatten(tree, [jnp.asarray(saved[f"leaf{i}"]) for i in range(len(leaves))])
    while step < last:
        data = np.random.default_rng(step)
        x, y = (data.standard_normal((16, size), np.float32) for size in (8, 4))
        params, state = update(params, state, x, y)
        step += 1
        leaves = jax.tree.leaves((params, state))
        with open(file + ".part", "wb") as part:
            np.savez(part, step=step, **{f"leaf{i}": leaf for i, leaf in enumerate(leaves)})
        os.replace(file + ".part", file)
"""
FOREVER = 10**9


def start(file, last):
    program = f"{PROGRAM}\ntrain({str(file)!r}, {last})"
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


@pytest.mark.heavy  # torch's test of the same name is an ordinary one
def test_killed_and_resumed(tmp_path):
    file, whole = tmp_path / "killed.npz", tmp_path / "whole.npz"
    killed = start(file, FOREVER)
    while not file.exists():
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.2))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    with np.load(file) as saved:
        step = int(saved["step"])
    last = step + 20
    resumed = start(file, last)
    names = {}
    exec(PROGRAM, names)
    names["train"](str(whole), last)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    with np.load(file) as actual, np.load(whole) as expected:
        assert actual.files == expected.files
        assert actual["step"] == last
        assert len(actual.files) > 1 + 5 * 3  # parameters, weights, what was written, accumulators, momenta
        for name in expected.files:
            assert_same_bits(actual[name], expected[name], f"{name}, killed after step {step}")
