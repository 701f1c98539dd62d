"""Hard numbers for sums over ranks: cancellation, ties, subnormal numbers, overflow, signed zeros, infinities, NaN."""

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
LEAST = {"bfloat16": -133, "float16": -24, "float32": -149}
TOP = {"bfloat16": 3.3e38, "float16": 6.5e4, "float32": 3.3e38}
KINDS = {
    "wide": lambda rng, shape, dtype: rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape),
    "ties": lambda rng, shape, dtype: rng.integers(-9, 10, shape) * 2.0 ** rng.integers(-8, 3, shape),
    "tiny": lambda rng, shape, dtype: rng.integers(-40, 41, shape) * 2.0 ** LEAST[dtype],
    "large": lambda rng, shape, dtype: rng.choice([-1, 1, 0.5, 0.25, -0.5, 1e-3], shape) * TOP[dtype],
    "zeros": lambda rng, shape, dtype: rng.choice([-0.0, -0.0, -0.0, 0.0, 1.0, -1.0], shape),
    "ends": lambda rng, shape, dtype: rng.choice([1.0, -3.0, -0.0, TOP[dtype], np.inf, -np.inf, np.nan], shape),
}


def hard_stack(kind, ranks, count, dtype):
    """Numbers (ranks, count) of a kind; every process makes the same."""
    rng = np.random.default_rng([ranks, count, list(KINDS).index(kind), list(DTYPES).index(dtype)])
    return KINDS[kind](rng, (ranks, count), dtype).astype(np.float32).astype(DTYPES[dtype])


def one_nan(x):
    """The same numbers, with one NaN in place of all."""
    x = np.array(x)
    x[np.isnan(x.astype(np.float32))] = np.nan
    return x
