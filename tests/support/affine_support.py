"""Inputs on which affine quantization goes wrong, shared by the tests of all packages."""

import numpy as np

from qcore.affine import INT8, AffineInteger

SPECIAL = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40, -1e-40, 3.4e38])
FORMS = [AffineInteger.of_width(bits, signed) for bits in (2, 3, 4, 8, 11, 16) for signed in (True, False)]
FORMS += [INT8.reduced(), AffineInteger(-5, 9), AffineInteger(0, 100, signed=True)]


def single(x):
    """float64 rounded to float32: the sum, product or quotient of two float32 numbers, rounded once."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def ties(rng, scale, zero_point, form, count):
    """Float32 within two ulp of where the integer changes, inside and around the range; then special numbers."""
    steps = rng.integers(form.qmin - zero_point - 3, form.qmax - zero_point + 4, count) + 0.5
    near = (steps * np.float64(scale)).astype(np.float32).view(np.int32) + rng.integers(-2, 3, count, np.int32)
    return np.concatenate([near.view(np.float32), SPECIAL])


def activations(rng, step):
    """Arrays of shape (16, 6, 9) like a network's: of six kinds, with ranges that grow over 300 steps.

    Outputs of a linear layer, of ReLU, long tails, sigmoids, an outlier now and then, and constants.
    """
    x = rng.normal(size=(16, 6, 9)) * (1 + 0.2 * rng.random()) * (1 + step / 300)
    outliers, constants = x + 4 * (step % 17 == 0), np.full_like(x, x[0, 0, 0])
    kinds = (x, np.maximum(x, 0), x**3, 1 / (1 + np.exp(-3 * x)), outliers, constants)
    return [kind.astype(np.float32) for kind in kinds]
