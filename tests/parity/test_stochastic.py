"""Stochastic rounding: unbiased, exact on representable numbers, and a function of key and index alone."""

import hashlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import usually
from support import assert_same_bits

import qcore
import qjax
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint

DRAWS = 10**6
NUMBERS = [
    # format, values across its range: normal, next to the largest, subnormal, below the smallest
    (FloatingPoint(5, 2), [1.1, 0.37, -3.9, 101_000.0, 2.0**-15 * 1.3, 2.0**-16 * 0.7, 2.0**-16 * 0.01]),
    (FloatingPoint(4, 3), [1.01, -470.0, 2.0**-9 * 0.3, 2.0**-7 * 1.9]),
    (FloatingPoint(8, 7), [3.14159, -1e-38, 1e-40, 2.9e38]),
    (FixedPoint(8, 4), [0.03, -0.97, 7.93, -7.99]),
    (BlockFloatingPoint(8), [0.3, -0.777, 1e-3]),
]


@pytest.mark.parametrize(("number", "values"), NUMBERS, ids=str)
def test_means(number, values):
    for index, value in enumerate(values):
        x = torch.full((DRAWS,), value)
        if isinstance(number, BlockFloatingPoint):
            x[0] = 1.0
        y = qtorch.quantize(x, number, "stochastic", key=index)[1:].double()
        exact = float(x[1])
        error = 4 * float(y.std()) / DRAWS**0.5
        assert float(y.std()) > 0
        assert abs(float(y.mean()) - exact) <= error


@pytest.mark.parametrize("number", [FloatingPoint(5, 2), FloatingPoint(8, 7), FixedPoint(16, 0)], ids=str)
def test_representable_numbers_never_move(number):
    x = qcore.quantize(np.random.default_rng(0).standard_normal(10**5).astype(np.float32) * 1000, number, "nearest")
    for key in range(5):
        assert_same_bits(qcore.quantize(x, number, "stochastic", key=key), x)


def test_random_bits_limit_the_probabilities():
    x = torch.full((10**5,), 0.25 + 1 / 64)  # 1/4 of a step up, with 1 bit: never or half of the time
    up = [
        float((qtorch.quantize(x, FixedPoint(8, 4), "stochastic", key=1, random_bits=r) > x).double().mean())
        for r in (1, 2, 24)
    ]
    assert up[0] == 0
    assert abs(up[1] - 0.25) < 0.01
    assert abs(up[2] - 0.25) < 0.01


X = np.random.default_rng(1).standard_normal((24, 40)).astype(np.float32)
NUMBER = FloatingPoint(4, 3)
EXPECTED = qcore.quantize(X, NUMBER, "stochastic", key=77)


def test_layout_does_not_matter():
    transposed = torch.from_numpy(X.T.copy()).T
    assert not transposed.is_contiguous()
    assert_same_bits(qtorch.quantize(transposed, NUMBER, "stochastic", key=77), EXPECTED)
    wide = torch.zeros(24, 80)
    wide[:, ::2] = torch.from_numpy(X)
    assert_same_bits(qtorch.quantize(wide[:, ::2], NUMBER, "stochastic", key=77), EXPECTED)


def test_threads_do_not_matter():
    x = torch.randn(1 << 17)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(qtorch.quantize(x, NUMBER, "stochastic", key=5))
    finally:
        torch.set_num_threads(threads)
    assert_same_bits(*results)


@pytest.mark.parametrize("first", [0, 2**32 - 100, 2**33 + 5, 2**64 - 960])
def test_chunks_have_the_bits_of_the_whole(first):
    flat = X.ravel()
    whole = qcore.quantize(flat, NUMBER, "stochastic", key=77, start=first)
    for quantize, make in ((qcore.quantize, np.array), (qtorch.quantize, torch.tensor), (qjax.quantize, jnp.asarray)):
        pieces = [
            quantize(make(flat[i : i + 7]), NUMBER, "stochastic", key=77, start=first + i)
            for i in range(0, flat.size, 7)
        ]
        assert_same_bits(np.concatenate([np.asarray(piece) for piece in pieces]), whole)


def test_keys_are_the_same_in_all_forms():
    for key in (5 << 32 | 6, (5, 6)):
        expected = qcore.quantize(X, NUMBER, "stochastic", key=key)
        assert_same_bits(qtorch.quantize(torch.from_numpy(X), NUMBER, "stochastic", key=key), expected)
        assert_same_bits(qjax.quantize(jnp.asarray(X), NUMBER, "stochastic", key=key), expected)
    for key in (torch.tensor([5, 6]), torch.tensor([5, 6], dtype=torch.uint32), torch.tensor([5, 6]).int()):
        assert_same_bits(qtorch.quantize(torch.from_numpy(X), NUMBER, "stochastic", key=key), expected)
    for key in (np.uint32([5, 6]), jnp.uint32([5, 6]), jax.random.wrap_key_data(jnp.uint32([5, 6]))):
        assert_same_bits(qjax.quantize(jnp.asarray(X), NUMBER, "stochastic", key=key), expected)
    assert_same_bits(qjax.quantize(jnp.asarray(X), NUMBER, "stochastic", key=jax.random.key(77)), EXPECTED)


SHARDS = {-1: ("a", "b"), 0: (("a", "b"), None), 1: (None, "b")}  # by the axis of blocks


@pytest.mark.parametrize("dim", usually((-1,), SHARDS))
def test_sharded_over_8_devices(dim):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*SHARDS[dim]))
    x = jax.device_put(X, sharding)
    y = qjax.quantize(x, NUMBER, "stochastic", key=77)
    assert y.sharding.is_equivalent_to(sharding, 2)
    assert_same_bits(y, EXPECTED)
    number = BlockFloatingPoint(5, dim)
    expected = qcore.quantize(X, number, "stochastic", key=77)
    assert_same_bits(qjax.quantize(x, number, "stochastic", key=77), expected)


@pytest.mark.heavy  # in one process: `test_threads_do_not_matter`
def test_one_thread_process_gives_the_same_bits():
    code = (
        "import torch, qtorch, hashlib; torch.set_num_threads(1); x = torch.arange(100000) / 777;"
        "y = qtorch.quantize(x, qtorch.FloatingPoint(5, 2), 'stochastic', key=3);"
        "print(hashlib.sha256(y.numpy().tobytes()).hexdigest())"
    )
    here = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-1]
    y = qtorch.quantize(torch.arange(100000) / 777, FloatingPoint(5, 2), "stochastic", key=3)
    assert hashlib.sha256(y.numpy().tobytes()).hexdigest() == here
