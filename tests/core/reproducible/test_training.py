"""Optimizers, clipping, learning rates and dropout beside exact fractions; torch and JAX are compared in parity."""

import numpy as np
import oracle_functions
import oracle_training as oracle
import pytest
from numerics_support import numbers, with_gradient
from support import assert_all_same_bits, assert_same_bits, words

from qcore import reproducible
from qcore.reproducible import Names
from qcore.reproducible.moves import EMBEDDING
from qcore.reproducible.pooling import DROPOUT

RNG = np.random.default_rng(31)
START = np.concatenate([np.float32([0.0, -0.0, 1e-39, 2.0**-126, -1.0]), numbers(RNG, 55)])
GRADIENTS = [numbers(RNG, 60) for _ in range(4)]
RATE = np.float32(0.037)


@pytest.mark.parametrize(
    ("momentum", "nesterov", "weight_decay"),
    [(0.0, False, 0.0), (0.0, False, 0.1), (0.9, False, 0.01), (0.9, True, 0.0)],
)
def test_sgd(momentum, nesterov, weight_decay):
    options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    p, expected = START, [START, START * 0]
    velocity = START * 0 if momentum else None
    for g in GRADIENTS:
        p, velocity = reproducible.sgd_step(p, g, velocity, RATE, **options)
        expected = oracle.sgd(expected[0], g, expected[1], rate=float(RATE), **options)
        assert_all_same_bits([p, expected[1] if velocity is None else velocity], expected)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
@pytest.mark.parametrize(("weight_decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
def test_adam(weight_decay, decoupled, betas):
    """The law has float64 logarithms in its corrections; these are powers of fractions."""
    options = {"betas": betas, "eps": 1e-8, "weight_decay": weight_decay, "decoupled": decoupled}
    found = expected = [START, START * 0, START * 0]
    for step, g in enumerate(GRADIENTS, 1):
        found = reproducible.adam_step(found[0], g, *found[1:], np.float32(step)[...], RATE[...], **options)
        expected = oracle.adam(expected[0], g, *expected[1:], step=step, rate=float(RATE), **options)
        assert_all_same_bits(found, expected)
    later = reproducible.adam_step(
        *(START for _ in "pg"), START, abs(START), np.float32(3001)[...], RATE[...], **options
    )
    right = oracle.adam(*(START for _ in "pg"), START, abs(START), step=3001, rate=float(RATE), **options)
    assert_all_same_bits(later, right)


@pytest.mark.parametrize("max_norm", [0.7, 1e30])
def test_clipping(max_norm):
    gradients = [RNG.normal(size=shape).astype(np.float32) for shape in ((3, 7), (), (11,))]
    found, norm = reproducible.clip_by_norm(gradients, max_norm)
    expected, right = oracle.clip(gradients, max_norm)
    assert_same_bits(norm, right)
    assert_all_same_bits(found, expected)
    assert (max_norm > 1) == all(np.array_equal(x, g) for x, g in zip(found, gradients, strict=True))


@pytest.mark.parametrize(
    "settings", [(1e-3, 100, 0, 0.0), (0.3, 37, 5, 1e-4), (7e-5, 1, 0, 2e-3), (0.1, 90_001, 4000, 0.0)]
)
def test_cosine(settings):
    schedule = reproducible.Cosine(*settings)
    last = settings[1]
    for step in sorted({*range(min(last, 45)), last // 3, last // 2, last - 1, last, last + 5, settings[2]}):
        found = reproducible.rate(schedule, np.float32(step)[...])
        assert_same_bits(found, np.float32(oracle.cosine(step, *settings)), f"step {step}")


def test_milestones():
    schedule = reproducible.Milestones(0.7, (0, 3, 3, 9), 0.1)
    for step in range(12):
        found = reproducible.rate(schedule, np.float32(step)[...])
        assert_same_bits(found, np.float32(oracle.milestones(step, 0.7, (0, 3, 3, 9), 0.1)), f"step {step}")


@pytest.mark.parametrize("rate", [0.0, "drawn", 1 - 2**-24, 0.9999999999])
def test_dropout(rate):
    """Words are JAX's, of the element's index; the gradient has the same zeros and the same factor."""
    x = numbers(RNG, 5, 401)
    drawn = words(7, x.shape)
    rate = float(drawn[3, 3] >> 8) / 2**24 if rate == "drawn" else rate  # the place whose word is the rate stays
    assert_same_bits(reproducible.dropout(x, rate, 7), oracle.dropout(x, rate, drawn))
    gradient = with_gradient(x.shape)
    with Names.arithmetic():
        of_x, _ = DROPOUT.gradients(Names, (np.int32([0, 7]),), gradient, {"rate": rate})
    assert_same_bits(of_x, oracle.dropout(gradient, rate, drawn))


@pytest.mark.parametrize("padding", [-1, 2])
def test_embedding(padding):
    """Indices that are no row give NaN; a row's gradient is the sum of its uses, in pairs of neighbours."""
    weight = numbers(RNG, 6, 3)
    indices = RNG.integers(-2, 8, (4, 17))
    inside = np.where((indices >= 0) & (indices < 6), indices, -2)
    places = np.where(inside[..., None] >= 0, inside[..., None] * 3 + np.arange(3), -1)
    gradient = with_gradient((4, 17, 3))
    y, of_weight = oracle_functions.at(weight, places, gradient)
    with Names.arithmetic():
        found, saved = EMBEDDING.run(Names, (weight, indices), {"padding": padding})
        of_rows, _ = EMBEDDING.gradients(Names, saved, gradient, {"padding": padding})
    of_weight[padding] = 0 if padding >= 0 else of_weight[padding]
    assert_same_bits(found, y)
    assert_same_bits(of_rows, of_weight)
    assert_same_bits(reproducible.embedding(indices, weight), y)
