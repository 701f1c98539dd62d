"""What GPUs run, compiled for this processor: packages write their results where they are told to."""

import pytest
import torch
from support import assert_same_bits

import qcore
from qtorch._rounding.keys import make_noise
from qtorch._rounding.paths.cuda import round_on_cuda
from qtorch._rounding.plan import make_plan

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("number", "mode", "dtype"),
    [
        pytest.param("mxfp8_e4m3", "nearest", "float32", marks=pytest.mark.heavy),
        pytest.param("nvfp4", "nearest", "float32", marks=pytest.mark.heavy),
        pytest.param("e4m3fn", "stochastic", "float32", marks=pytest.mark.heavy),
        ("e4m3fn", "nearest", "float16"),
    ],
)
def test_packages(number, mode, dtype, monkeypatch):
    plan = make_plan(number, mode, getattr(torch, dtype), None, True)
    x = torch.randn(6, 64, dtype=getattr(torch, dtype))
    noise = make_noise(3, 24, 0, x) if plan.stochastic else None
    results = round_on_cuda(x, plan, noise)
    expected = qcore.encode(x.numpy(), number, mode, key=3 if noise else None)
    if not isinstance(expected, tuple):
        assert_same_bits(results, expected)
        return
    codes, scales = expected
    for one, other in zip(results, (codes, *(scales if isinstance(scales, tuple) else (scales,))), strict=True):
        assert_same_bits(one, other)
