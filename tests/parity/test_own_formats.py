"""A user's own formats in all packages: the bits of their definition, eager, compiled and jitted."""

import jax
import numpy as np
import pytest
import torch
from own_formats import Capped, Levels, Logarithmic
from support import assert_same_bits, to_torch

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import random_bits


def capped(x, exp, man, last):
    """The nearest number of a table, ties to the even code, by Python's numbers."""
    magnitudes = []
    for code in range(last + 1):
        field, mantissa = divmod(code, 1 << man)
        magnitudes.append((mantissa + (1 << man) * (field > 0)) * 2.0 ** (max(field, 1) - (1 << (exp - 1)) + 1 - man))
    found = min(range(last + 1), key=lambda code: (abs(min(abs(float(x)), 1000) - magnitudes[code]), code % 2))
    return np.copysign(np.float32(magnitudes[found]), x)


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(5)
    near = np.float32(rng.integers(-40, 40, 2000) * 2.0 ** rng.integers(-12, 5, 2000))  # ties among them
    return np.concatenate([np.float32([0, -0.0, np.inf, -np.inf, 1e30]), near, random_bits(2000, np.float32, rng)])


def expected_of(number, x):
    with np.errstate(all="ignore"):
        if isinstance(number, Levels):
            step = np.float32(2.0**number.exponent)
            clipped = np.clip(np.rint(x / step), -number.most, number.most) * step
        elif isinstance(number, Logarithmic):
            last = 2 ** (number.exp + number.man - 1)
            numbers = np.array([0, *(2 ** (power / 2**number.man) for power in range(1 - last, last))])
            distance = abs(np.minimum(abs(x.astype(np.float64)), 1e9)[:, None] - numbers)  # no ties but at 2^k / 2
            clipped = numbers[distance.argmin(1)].astype(np.float32)
        else:
            arguments = number.exp, number.man, number.last
            clipped = np.float32([one if np.isnan(one) else capped(one, *arguments) for one in x])
    return np.where(np.isnan(x), x, np.copysign(clipped, x))


@pytest.mark.parametrize(
    "number", [Capped(4, 3, 119), Capped(3, 2, 30), Levels(5), Levels(3, -2), Logarithmic(4, 2)], ids=str
)
def test_the_bits_of_the_definition(number, x):
    expected = expected_of(number, x)
    results = [qcore.quantize(x, number), qcore.quantize(x, number.text)]
    results += [
        qtorch.quantize(to_torch(x), number),
        qtorch.quant.Quantizer(number.text, forward_rounding="nearest")(to_torch(x)),
    ]
    results += [qjax.quantize(x, number), jax.jit(lambda x: qjax.quantize(x, number.text))(x)]
    results += [qjax.quant.quantizer(number, forward_rounding="nearest")(x)]
    results += [torch.compile(lambda x: qtorch.quantize(x, number), backend="aot_eager", fullgraph=True)(to_torch(x))]
    for result in results:
        assert_same_bits(result, expected)
    gradient = torch.func.grad(lambda x: (3 * qtorch.quantize(x, number)).sum())(to_torch(x))
    assert_same_bits(gradient, np.full_like(x, 3))


@pytest.mark.parametrize(
    "number",
    [Levels(5), *(pytest.param(one, marks=pytest.mark.heavy) for one in (Capped(4, 3, 119), Logarithmic(4, 2)))],
    ids=str,
)
def test_formats_pass_the_tests_of_each_package(number):
    torch._dynamo.reset()
    qtorch.testing.check_format(number, ["nearest", "stochastic"])
    qjax.testing.check_format(number.text, ["nearest", "stochastic"])


def test_products_have_accumulators_of_ones_own():
    a = np.arange(12, dtype=np.float32).reshape(2, 6) / 4
    by_hand = np.float32([[0] * 2] * 2)
    for i, j, k in np.ndindex(2, 2, 6):
        by_hand[i, j] = capped(by_hand[i, j] + a[i, k] * a[j, k], 4, 3, 119)
    accumulator = qcore.Accumulator("capped(4,3,119)", chunk=1)
    for result in (
        qcore.linalg.matmul(a, a.T, accumulator=accumulator),
        qtorch.linalg.matmul(to_torch(a), to_torch(a).T, accumulator=accumulator),
        qjax.linalg.matmul(a, a.T, accumulator=accumulator),
    ):
        assert_same_bits(result, by_hand)


@pytest.mark.parametrize("package", [qtorch, qjax])
def test_other_bits_are_found(package, monkeypatch):
    of_numpy = qcore.testing.quantize

    def other(x, number, mode="nearest", **others):
        return (
            -of_numpy(-x, number, mode, **others) if str(mode) == "stochastic" else -of_numpy(x, number, mode, **others)
        )

    monkeypatch.setattr(qcore, "quantize", other)
    with pytest.raises(AssertionError, match="quantize of levels\\(5\\) to nearest in float32 is not that of qcore"):
        package.testing.check_format(Levels(5), ["nearest"])
