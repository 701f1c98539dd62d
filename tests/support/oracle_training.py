"""Steps of optimizers, clipping, learning rates and dropout in exact fractions, written from their formulas.

Every operation is exact and then rounded to float32, ties to even; numbers of magnitude at most 2^-126 are zeros of
their sign. Numbers are Python floats that float32 has, so that -0.0 keeps its sign. Nothing here is the library's.
"""

from fractions import Fraction
from math import copysign, isqrt

import mpmath
import numpy as np


def rounded(exact, negative_zero=False):
    """The float32 number next to a fraction; `negative_zero` is the sign of an exact zero."""
    if exact == 0:
        return -0.0 if negative_zero else 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** (exponent - 23)
    size = round(size / quantum) * quantum  # Python rounds fractions to even
    number = 0.0 if size <= Fraction(2) ** -126 else float(size) if size < Fraction(2) ** 128 else float("inf")
    return copysign(number, exact)


def of(x):
    """A float32 number, or a Python number, as the law takes it."""
    return rounded(Fraction(float(x)), copysign(1, x) < 0)


def add(a, b):
    both = copysign(1, a) < 0 and copysign(1, b) < 0
    return rounded(Fraction(a) + Fraction(b), both)


def sub(a, b):
    return add(a, -b)


def mul(a, b):
    return rounded(Fraction(a) * Fraction(b), copysign(1, a) != copysign(1, b))


def div(a, b):
    return rounded(Fraction(a) / Fraction(b), copysign(1, a) != copysign(1, b))


def sqrt(a):
    """By an integer's root with 100 more bits, whose rest decides ties."""
    scaled = Fraction(a) * 4**300
    assert scaled.denominator == 1
    root = isqrt(scaled.numerator)
    return rounded(Fraction(2 * root + (root**2 != scaled), 2 * 2**300))


def each(function):
    """The function of numbers for arrays of one shape, whose results are float32 arrays."""

    def of_arrays(*arrays, **options):
        rows = [function(*map(of, row), **options) for row in zip(*(x.ravel() for x in arrays), strict=True)]
        return [np.float32(column).reshape(arrays[0].shape) for column in zip(*rows, strict=True)]

    return of_arrays


@each
def sgd(p, gradient, velocity, *, rate, momentum, nesterov, weight_decay):
    if weight_decay:
        gradient = add(gradient, mul(of(weight_decay), p))
    if momentum:
        velocity = add(mul(of(momentum), velocity), gradient)
        gradient = add(gradient, mul(of(momentum), velocity)) if nesterov else velocity
    return sub(p, mul(rate, gradient)), velocity


@each
def adam(p, gradient, first, second, *, step, rate, betas, eps, weight_decay, decoupled):
    if weight_decay and decoupled:
        p = mul(p, sub(1.0, mul(rate, of(weight_decay))))
    elif weight_decay:
        gradient = add(gradient, mul(of(weight_decay), p))
    (beta1, rest1, left1), (beta2, rest2, left2) = (
        (of(beta), of(1 - beta), rounded(1 - Fraction(beta) ** step)) for beta in betas
    )
    first = add(mul(beta1, first), mul(rest1, gradient))
    second = add(mul(beta2, second), mul(rest2, mul(gradient, gradient)))
    root = add(div(sqrt(second), sqrt(left2)), of(eps))
    return sub(p, mul(div(rate, left1), div(first, root))), first, second


def clip(gradients, max_norm):
    """(clipped gradients, norm)."""
    squares = [rounded(sum(Fraction(of(x)) ** 2 for x in g.ravel())) for g in gradients]
    norm = sqrt(rounded(sum(map(Fraction, squares))))
    factor = min(1.0, div(of(max_norm), add(norm, of(1e-6))))
    return [each(lambda x: [mul(x, factor)])(g)[0] for g in gradients], np.float32(norm)


def cosine(step, rate, steps, warmup, last):
    if step < warmup:
        return div(mul(of(step + 1), of(rate)), of(warmup))
    with mpmath.workprec(300):
        left = max(mpmath.mpf(steps - step) / (steps - warmup), 0)
        mantissa, exponent = mpmath.frexp(mpmath.sin(mpmath.pi / 2 * left) ** 2)
        part = Fraction(int(mpmath.ldexp(mantissa, 300))) * Fraction(2) ** (int(exponent) - 300)
    return add(mul(rounded(part), of(rate - last)), of(last))


def milestones(step, rate, places, factor):
    rate = of(rate)
    for place in places:
        rate = mul(rate, of(factor)) if step >= place else rate
    return rate


def dropout(x, rate, words):
    """x times the float32 number next to 1 / (1 - rate), where a word's leading 24 bits are at least the rate."""
    kept, scale = (words >> 8) >= round(Fraction(rate) * 2**24), of(1 / (1 - rate))
    return np.where(kept, each(lambda x: [mul(x, scale)])(x)[0], np.float32(0))
