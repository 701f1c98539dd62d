"""IEEE P3109's saturation modes and stochastic roundings: the bits of NumPy in PyTorch and JAX, by every path."""

from itertools import product

import jax
import numpy as np
import pytest
import torch
from covering import usually
from support import (
    assert_all_same_bits,
    assert_same_bits,
    by_jax,
    by_numpy,
    by_torch,
    by_torch_operations,
    to_torch,
)

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import hard_inputs

SATURATIONS = (
    "binary8p4se:propagate binary8p4sf binary8p4ue binary8p5uf binary6p1ue:propagate e5m2:propagate bfloat16:propagate"
).split()
VARIANTS = ("stochastic_b", "stochastic_c")


def inputs(text, dtype=np.float32):
    return hard_inputs(qcore.parse(text), 4000, dtype)[0]


@pytest.mark.parametrize("text", usually(SATURATIONS[:5:4], SATURATIONS))
def test_saturations(text):
    x, number = inputs(text), qcore.parse(text)
    for mode in ("nearest", "odd", "up"):
        expected = by_numpy(x, number, mode, None)
        for backend in (by_torch, by_torch_operations, by_jax):
            assert_same_bits(backend(x, number, mode, 1), expected, f"{text} {mode} {backend.__name__}")
        codes = qcore.encode(x, number, mode)
        assert_same_bits(qtorch.encode(to_torch(x), number, mode), codes)
        assert_same_bits(qjax.encode(x, number, mode), codes)


@pytest.mark.parametrize("mode", usually(VARIANTS[:1], VARIANTS))
def test_variants(mode):
    for text, dtype in (
        ("binary8p4se", np.float32),
        ("fixed(8,4)", np.float16),
        ("posit8", np.float32),
        ("e5m2", np.float64),
    ):
        x = inputs(text, dtype)
        for few in (1, 5, 24):
            expected = by_numpy(x, text, mode, 9, random_bits=few, start=3)
            for backend in (by_torch, by_torch_operations, by_jax):
                found = backend(x, qcore.parse(text), mode, 9, random_bits=few, start=3)
                assert_same_bits(found, expected, f"{text} {few} {backend.__name__}")
        codes = qcore.encode(x, text, mode, key=9, random_bits=5)
        assert_same_bits(qtorch.encode(to_torch(x), text, mode, key=9, random_bits=5), codes)
        if dtype != np.float64:
            assert_same_bits(qjax.encode(x, text, mode, key=9, random_bits=5), codes)


@pytest.mark.parametrize("text", usually(["mxfp8_e4m3"], ["mxfp8_e4m3", "block(8,dim=0)"]))
def test_variants_of_blocks(text):
    x = hard_inputs(qcore.parse(text), 3000)[0]
    expected = by_numpy(x, text, "stochastic_c", 9, random_bits=2)
    assert_same_bits(by_torch(x, text, "stochastic_c", 9, random_bits=2), expected)
    assert_same_bits(by_jax(x, text, "stochastic_c", 9, random_bits=2), expected)


@pytest.mark.heavy
def test_compiled_programs():
    x = inputs("e5m2")

    def program(quantize, x):
        saturated = quantize(x, "binary8p4ue", "odd"), quantize(x, "e5m2:propagate"), quantize(x, "binary8p5uf", "up")
        return *saturated, quantize(x, "e5m2", "stochastic_b", key=3, random_bits=4)

    expected = program(qcore.quantize, x)
    compiled = torch.compile(lambda x: program(qtorch.quantize, x))
    assert_all_same_bits(compiled(torch.from_numpy(x)), expected)
    assert_all_same_bits(jax.jit(lambda x: program(qjax.quantize, x))(x), expected)


@pytest.mark.heavy
@pytest.mark.parametrize("few", [3, 20])
def test_accumulators(few):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 12, 12)).astype(np.float32)
    for mode, chunk in zip(VARIANTS, (1, 4), strict=True) if few == 3 else product(VARIANTS, (1, 4)):
        accumulator = qcore.Accumulator("float(5,5)", chunk=chunk, rounding=mode, random_bits=few)
        settings = {"operands": ("e4m3fn", "e4m3fn"), "accumulator": accumulator, "key": 7}
        expected = qcore.linalg.matmul(a, b, **settings)
        found = qtorch.linalg.matmul(to_torch(a), to_torch(b), **settings)
        assert_same_bits(found, expected)
        assert_same_bits(qjax.linalg.matmul(a, b, **settings), expected)
