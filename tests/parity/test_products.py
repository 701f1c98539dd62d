"""Products in NumPy, torch and JAX, eager and compiled: the same bits, forward and of both gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from products_support import ACCUMULATORS, KINDS, inputs
from support import assert_same_bits

import qjax
import qtorch
from qcore import Product
from qcore.accumulate.arrays import multiply_arrays
from qcore.accumulate.forms import FORWARD, GRAD_A, GRAD_B, MatrixForm

KEY = 7
OPERANDS = ("e5m2", "binary(4,3,specials=fn,overflow=saturate)")
FORMS = {"matmul": MatrixForm(), "linear": MatrixForm(transposed=True)}


def three_products(form, a, b, gradient, products, key=KEY):
    """The reference's result and its two gradients."""
    y = multiply_arrays(form, FORWARD, products[0], a, b, b.shape, key).reshape(form.result(a.shape, b.shape))
    of_a = multiply_arrays(form, GRAD_A, products[1], gradient, b, a.shape, key).reshape(a.shape)
    of_b = multiply_arrays(form, GRAD_B, products[2], gradient, a, b.shape, key).reshape(b.shape)
    return y, of_a, of_b


def by_torch(function, a, b, gradient, compiled=False):
    a, b = (torch.from_numpy(x.copy()).requires_grad_() for x in (a, b))
    function = torch.compile(function, fullgraph=True) if compiled else function
    y = function(a, b)
    return y, *torch.autograd.grad(y, (a, b), torch.from_numpy(gradient))


def by_jax(function, a, b, gradient):
    y, pull = jax.vjp(function, jnp.asarray(a), jnp.asarray(b))
    return y, *pull(jnp.asarray(gradient))


def check(name, form, a, b, products, call, compiled=False):
    gradient = inputs("normal", 1, int(np.prod(form.result(a.shape, b.shape))), 1)[0].reshape(
        form.result(a.shape, b.shape)
    )
    expected = three_products(form, a, b, gradient, products)
    found = {
        "torch": by_torch(lambda a, b: call(qtorch.linalg, a, b), a, b, gradient),
        "jax": by_jax(lambda a, b: call(qjax.linalg, a, b), a, b, gradient),
    }
    if compiled:
        torch._dynamo.reset()
        found["torch.compile"] = by_torch(lambda a, b: call(qtorch.linalg, a, b), a, b, gradient, compiled=True)
        together = jax.jit(lambda a, b, gradient: by_jax(lambda a, b: call(qjax.linalg, a, b), a, b, gradient))
        found["jax.jit"] = together(a, b, gradient)
    for backend, results in found.items():
        for which, x, y in zip((FORWARD, GRAD_A, GRAD_B), results, expected, strict=True):
            assert_same_bits(x, y, f"{name}, {which}, {backend}")


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_all_accumulators(name):
    """On inputs of all kinds side by side, forward and backward, eager and compiled."""
    pairs = [inputs(kind, 2, 33, 3) for kind in KINDS]
    a, b = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], axis=1)
    accumulator = ACCUMULATORS[name]
    grads = Product("e5m2", "float(5,2)", accumulator), Product(None, "e4m3fn", accumulator)
    products = Product(*OPERANDS, accumulator), *grads
    options = {"operands": OPERANDS, "accumulator": accumulator, "grad_a": grads[0], "grad_b": grads[1], "key": KEY}
    check(name, FORMS["matmul"], a, b, products, lambda room, a, b: room.matmul(a, b, **options), compiled=True)
