"""Statistics of roundings: NumPy against an oracle in fractions, and torch and JAX against NumPy, field by field."""

import itertools

import ml_dtypes
import numpy as np
import oracle_insight
import pytest
import torch

import qcore
import qjax.insight
import qtorch.insight
from qcore.insight import statistics_of
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch.insight import tensors

TEXTS = (
    *oracle_insight.RANGES,
    "block(8)",
    "block(5,dim=0)",
    "scaled(e4m3fn,{-1:16})",
    "scaled(e2m1fn,{-1:16})",
    "nvfp4",
)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
TORCH = {np.float32: torch.float32, np.float16: torch.float16, ml_dtypes.bfloat16: torch.bfloat16}


def matrix(dtype, special, shape=(6, 24)):
    """Numbers of all exponents of a dtype: halfway ones, subnormal ones, zeros, and perhaps infinities and NaN."""
    rng = np.random.default_rng(7)
    with np.errstate(over="ignore", under="ignore"):
        wide = rng.normal(size=shape) * 2.0 ** rng.integers(-30, 20, shape)
        rows = [
            wide[:3],
            np.round(rng.normal(size=(1, shape[1])) * 40) / 64,
            2.0 ** rng.integers(-160, 128, (1, shape[1])),
        ]
        x = np.concatenate([*rows, -rng.integers(0, 9, (1, shape[1])) * 2.0**-149]).astype(dtype)
        x[0, :3] = 0, -0.0, np.finfo(np.float16).tiny / 8
        x[1, 0] = ml_dtypes.finfo(dtype).max
        if special:
            x[2, :3] = np.inf, -np.inf, np.nan
    return x


def to_torch(x):
    words = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}")
    return torch.from_numpy(words).view(TORCH[x.dtype.type])


@pytest.mark.parametrize("text", TEXTS)
def test_oracle(text):
    for dtype, special, mode in itertools.product(DTYPES, (False, True), ("nearest", "up")):
        x = matrix(dtype, special)
        y = qcore.quantize(x, text, mode)
        found, want = statistics_of(x, text, mode), oracle_insight.statistics(x, y, text)
        assert {name: getattr(found, name) for name in want} == want, (text, dtype, special, mode)


@pytest.mark.parametrize("dtype", [np.float32, *(pytest.param(one, marks=pytest.mark.heavy) for one in DTYPES[1:])])
def test_packages(dtype, monkeypatch):
    for text, special in itertools.product(TEXTS, (False, True)):
        x = matrix(dtype, special)
        want = statistics_of(x, text, "stochastic", key=5)
        found = qtorch.insight.statistics_of(to_torch(x), text, "stochastic", key=5)
        assert want.differing(found) == [], text
        found = qtorch.insight.statistics_of(to_torch(np.ascontiguousarray(x.T)).T, text, "stochastic", key=5)
        assert want.differing(found) == [], text
        with monkeypatch.context() as patch:
            patch.setattr(tensors, "is_plain_tensor", lambda x: False)
            assert want.differing(tensors.statistics_of(to_torch(x), text, "stochastic", key=5)) == [], text
        assert want.differing(qjax.insight.statistics_of(x, text, "stochastic", key=5)) == [], text
    assert is_plain_tensor(to_torch(x))  # so that there was a kernel
