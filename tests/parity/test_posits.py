"""Posits in training: values and gradients, and optimizers, have the bits of `qcore.quantize`."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from support import assert_same_bits

import qcore
import qjax
import qtorch
from qcore import Posit
from qtorch.optim import OptimLP

X = (np.random.default_rng(0).standard_normal((8, 50)) ** 9).astype(np.float32)
GRAD = (np.random.default_rng(1).standard_normal((8, 50)) ** 9).astype(np.float32)
KEY = 5


def test_quantizers():
    forward, backward = qcore.quantize(X, "posit16", "nearest"), qcore.fold_in(KEY, 1)
    backward = qcore.quantize(GRAD, Posit(32, 3), "stochastic", key=backward)
    arguments = ("posit16", Posit(32, 3), "nearest", "stochastic")

    x = torch.from_numpy(X).clone().requires_grad_()
    y = qtorch.quantizer(*arguments)(x, key=KEY)
    y.backward(torch.from_numpy(GRAD))
    assert_same_bits(y, forward)
    assert_same_bits(x.grad, backward)

    rounded = qjax.quantizer(*arguments)
    y, pull = jax.vjp(lambda x: rounded(x, key=KEY), jnp.asarray(X))
    assert_same_bits(y, forward)
    assert_same_bits(pull(jnp.asarray(GRAD))[0], backward)


def test_an_optimizers_many_small_tensors():
    parameters = [torch.nn.Parameter(torch.from_numpy(row).clone()) for row in X]
    for parameter, grad in zip(parameters, GRAD, strict=True):
        parameter.grad = torch.from_numpy(grad).clone()
    OptimLP(torch.optim.SGD(parameters, lr=0.0), weight_quant=qtorch.quantizer("posit16"), key=KEY).step()
    for index, (parameter, row) in enumerate(zip(parameters, X, strict=True)):
        key = qcore.fold_in(qcore.fold_in(qcore.fold_in(KEY, 0), 2), index)
        assert_same_bits(parameter, qcore.quantize(row, "posit16", "stochastic", key=key))


def test_vmap():
    values = qcore.quantize(X, "posit16", "nearest")
    assert_same_bits(torch.func.vmap(lambda x: qtorch.quantize(x, "posit16", "nearest"))(torch.from_numpy(X)), values)
    assert_same_bits(jax.vmap(lambda x: qjax.quantize(x, "posit16", "nearest"))(jnp.asarray(X)), values)
