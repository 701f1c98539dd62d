"""Optimizers whose states are codes between steps: the bits of training are those of states as floats."""

import copy
import io
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from covering import some
from support import assert_same_bits

import qjax
from qjax.optim import low_precision
from qtorch.optim import OptimLP
from qtorch.quant import quantizer


def gradients(step):
    return np.random.default_rng(step).standard_normal((3, 64)).astype(np.float32)


def run(optimizer, p, steps):
    for step in steps:
        p.grad = torch.from_numpy(gradients(step)).to(p.dtype)
        optimizer.step()
    return p.detach().float().numpy()


FORMS = {
    "e5m2": ("low_precision_codes_of_exp_avg", torch.uint8),
    "bfloat16": ("low_precision_codes_of_exp_avg", torch.int16),
    "fixed(8,4)": ("low_precision_codes_of_exp_avg", torch.uint8),
    "mxfp8_e4m3": ("low_precision_scales_of_exp_avg", torch.uint8),
}


def made(p, number, storage, **options):
    rounded = quantizer(number, forward_rounding="stochastic" if number == "e5m2" else "nearest")
    inner = torch.optim.Adam([p], lr=1e-2)
    return OptimLP(inner, momentum_quant=rounded, acc_quant="bfloat16", key=3, state_storage=storage, **options)


@some(
    *((i, j) for i in range(2) for j in range(4) if i or j != 3), dtype=[torch.float32, torch.bfloat16], number=[*FORMS]
)
def test_bits_in_torch(number, dtype):
    """Also after a copy, and a checkpoint that another optimizer loads, with floats or with codes."""
    start = torch.from_numpy(gradients(0)).to(dtype)
    first, second, third = (torch.nn.Parameter(start.clone()) for _ in range(3))
    floats, codes = made(first, number, None), made(second, number, "codes")
    assert_same_bits(run(floats, first, (1, 2)), run(codes, second, (1, 2)))
    name, kind = FORMS[number]
    assert codes.state[second][name].dtype is kind
    assert "exp_avg" not in codes.state[second]
    assert "state_storage: codes, of parameters 0 of 1" in repr(codes)
    file = io.BytesIO()
    torch.save(codes.state_dict(), file)
    third.data.copy_(second.data)
    for storage, kept in ((None, "exp_avg"), ("codes", name)):
        other = made(third, number, storage)
        other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
        assert kept in other.state[third]
    assert pickle.loads(pickle.dumps(codes)).state_storage == "codes"
    pair = copy.deepcopy({"p": second, "optimizer": codes})
    expected = run(floats, first, (3, 4))
    assert_same_bits(expected, run(other, third, (3, 4)))
    assert_same_bits(expected, run(pair["optimizer"], pair["p"], (3, 4)))
    floats_later = made(second, number, "codes")
    floats_later.load_state_dict(floats.state_dict())  # a float state becomes codes
    assert name in floats_later.state[second]


def test_bits_in_jax():
    rounded = qjax.quantizer("e5m2", forward_rounding="stochastic")
    found = []
    for storage in (None, "codes"):
        tx = low_precision(optax.adam(1e-2), momentum_quant=rounded, key=3, state_storage=storage)
        params = jnp.asarray(gradients(0))
        state = tx.init(params)
        step = jax.jit(tx.update)
        for number in (1, 2):
            updates, state = step(jnp.asarray(gradients(number)), state, params)
            params = optax.apply_updates(params, updates)
        found.append((params, state))
    assert_same_bits(np.asarray(found[0][0]), np.asarray(found[1][0]))
    mu = found[1][1].inner[0].mu
    assert mu.codes.dtype == jnp.uint8
    assert_same_bits(np.asarray(qjax.decode(mu.codes, "e5m2")), np.asarray(found[0][1].inner[0].mu))


@pytest.mark.heavy
@pytest.mark.parametrize("number", ["fixed(8,4)", "float(6,9)"])
def test_kernels_of_the_optimizer_are_the_same(number):
    """Decoding that XLA fuses with Adafactor's own operations would give other bits."""
    found = []
    for storage in (None, "codes"):
        tx = low_precision(optax.adafactor(1e-2), momentum_quant=number, state_storage=storage)
        params = jnp.asarray(np.random.default_rng(0).standard_normal((4, 16)), jnp.float32)
        state, update = tx.init(params), jax.jit(tx.update)
        for _ in range(3):
            updates, state = update(params, state, params)
            params = optax.apply_updates(params, updates)
        found.append(np.asarray(params))
    assert_same_bits(*found)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("state_storage='floats'; allowed", {"momentum_quant": "e5m2", "state_storage": "floats"}),
        ("without a format in momentum_quant", {"state_storage": "codes"}),
    ],
)
def test_wrong(message, options):
    p = torch.nn.Parameter(torch.ones(2))
    for make in (lambda: OptimLP(torch.optim.SGD([p]), **options), lambda: low_precision(optax.sgd(0.1), **options)):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()
    with pytest.raises(ValueError, match="allowed are formats without blocks"):
        low_precision(optax.sgd(0.1), momentum_quant="mxfp8_e4m3", state_storage="codes")
