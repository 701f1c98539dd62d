"""The arithmetic of quantized arrays: the same integers and parameters in NumPy, PyTorch and JAX, compiled too."""

from fractions import Fraction
from math import factorial

import jax
import numpy as np
import pytest
import torch
from covering import some
from functional_support import in_jax, in_torch, operand, params_in_jax, params_in_torch
from support import assert_same_bits

from qcore.affine import INT8, UINT8, AffineInteger, Names, QParams
from qcore.affine import functional as law
from qcore.affine.functional.activations import sigmoid_of
from qjax._namespace import Names as JaxNames
from qtorch._affine.namespace import Names as TorchNames

FORMS = {
    "uint8": (UINT8, UINT8),
    "int8": (INT8, UINT8),
    "int4": (AffineInteger.of_width(4), AffineInteger.of_width(5)),
    "uint16": (AffineInteger.of_width(16, False), AffineInteger.of_width(12)),
}
# Scales of small odd numbers times powers of two: a large part of the results are ties, or within an ulp of one.
SCALES = [(0.03, 0.05), (1.5, 0.5), (3 * 2.0**-9, 7 * 2.0**-8), (2.0**-70, 2.0**-69)]

BINARY = {
    "add": lambda a, b, output: law.add(a, b, output),
    "add_relu": lambda a, b, output: law.add(a, b, output, relu=True),
    "add to int8": lambda a, b, output: law.add(a, b, output, INT8),
    "mul": lambda a, b, output: law.mul(a, b, output),
    "mul_relu": lambda a, b, output: law.mul(a, b, output, relu=True),
    "cat": lambda a, b, output: law.cat([a, b, a], -1, output),
    "matmul": lambda a, b, output: law.matmul(a, b.reshape(33, 64), output),
    "einsum": lambda a, b, output: law.einsum("ij,kj->ki", a, b, output, INT8),
    "stack": lambda a, b, output: law.stack([a, b], 1, output),
}
UNARY = {
    **{f"add_scalar {c}": lambda a, c=c: law.add_scalar(a, c) for c in (0.7, -0.3, 50.0, -50, 0)},
    **{f"mul_scalar {c}": lambda a, c=c: law.mul_scalar(a, c) for c in (0.7, -0.3, 0)},
    "cat of its parts": lambda a: law.cat([a[1:], a[:1]], 0),
    "masked_fill": lambda a: law.masked_fill(a, a > 0.3, 0.26),
    "relu6": lambda a: law.clamp(a, 0, 6),
    "hardtanh": lambda a: law.clamp(a, -1.0, 1.0),
    "clamp": lambda a: law.clamp(a, high=0.26),
    "threshold": lambda a: law.threshold(a, 0.26, -0.51),
    "threshold, subnormal": lambda a: law.threshold(a, -1e-40, 0.26),  # which 0 is above
}


def same(actual, expected):
    assert_same_bits(np.asarray(actual.values), expected.values)
    assert_same_bits(np.asarray(actual.qparams.scale), np.asarray(expected.qparams.scale))
    assert_same_bits(np.asarray(actual.qparams.zero_point), np.asarray(expected.qparams.zero_point))
    assert actual.form == expected.form


def operands(forms, scales, seed, shape=(64, 33)):
    rng = np.random.default_rng(seed)
    a, b = (operand(rng, form, shape, scale) for form, scale in zip(FORMS[forms], scales, strict=True))
    zero = int(rng.integers(a.form.qmin, a.form.qmax + 1))
    return a, b, QParams.of(np.float32(scales[0]) * 2, min(zero, 127))


def everything(a, b, output, unary=True):
    results = {name: call(a, b, output) for name, call in BINARY.items()}
    return results | ({name: call(a) for name, call in UNARY.items()} if unary else {})


def same_all(actual, expected):
    assert actual.keys() == expected.keys()
    for name, result in expected.items():
        same(actual[name], result)


@some((0, 0), (3, 3), scales=SCALES, forms=[*FORMS])
def test_frameworks(forms, scales):
    unary = scales[0] > 1e-9  # else sums with numbers have scales that are refused
    a, b, output = operands(forms, scales, 1)
    expected = everything(a, b, output, unary)
    same_all(everything(in_torch(a), in_torch(b), params_in_torch(output), unary), expected)
    traced = jax.jit(everything, static_argnums=3)
    same_all(traced(in_jax(a), in_jax(b), params_in_jax(output), unary), expected)


@some((0, 0), (1, 1), forms=["uint8", "uint16"], scales=[SCALES[0], (0.0371, 0.0123)])
def test_parameters_that_the_compiler_of_jax_knows(forms, scales):
    """It would see that products of integers with such a scale are no NaN, and fuse them with sums."""
    a, b, output = operands(forms, scales, 2)
    known = in_jax(a), in_jax(b), params_in_jax(output)
    same_all(jax.jit(lambda: everything(*known))(), everything(a, b, output))


def test_sums_of_products_with_scales_that_the_compiler_of_jax_knows():
    """In the sums themselves the differences are many, where ties of integers are few."""
    a, b, _ = operands("uint8", (0.0371, 0.0123), 3, (100_000,))
    zeros = int(a.qparams.zero_point), int(b.qparams.zero_point)

    def sums(xp, x, y):
        numbers = (
            xp.rounded(xp.astype(xp.astype(q, "int32") - zero, "float32") * xp.full((), scale, "float32"))
            for q, zero, scale in zip((x, y), zeros, (0.0371, 0.0123), strict=True)
        )
        return next(numbers) + next(numbers)

    actual = jax.jit(lambda x, y: sums(JaxNames, x, y))(a.values, b.values)
    assert_same_bits(np.asarray(actual), sums(Names, a.values, b.values))


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_by_torch(backend):
    forms = "int4"
    a, b, output = operands(forms, SCALES[0], 0)
    a, b, output = in_torch(a), in_torch(b), params_in_torch(output)

    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    same_all(compiled(a, b, output), everything(a, b, output))


@pytest.mark.parametrize("names", [Names, TorchNames, JaxNames], ids=["numpy", "torch", "jax"])
def test_sigmoids_next_to_zero(names):
    """The nearest float32 number, by rational numbers; at the first input libraries' exponentials decided otherwise."""
    rng = np.random.default_rng(0)
    some = np.float32(rng.random(200) * 2.0 ** -rng.integers(11, 24, 200))
    x = np.concatenate([np.float32([9.894371032714844e-06]), some, -some])
    with names.arithmetic():
        found = np.asarray(sigmoid_of(names, names.asarray(x)))
    for number, y in zip(x, found, strict=True):
        exact = 1 / (1 + sum(Fraction(-float(number)) ** k / factorial(k) for k in range(9)))
        near, *others = (abs(Fraction(float(one)) - exact) for one in (y, np.nextafter(y, 0), np.nextafter(y, 1)))
        assert near < min(others)
