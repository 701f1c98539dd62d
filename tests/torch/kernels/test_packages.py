"""Packages of Inductor's, compiled for this processor: what GPUs run, and the CPU with QTORCH_KERNELS=inductor."""

import pytest
import torch
from support import assert_same_bits

import qcore
import qtorch
from qtorch._affine import launch
from qtorch._kernels import packages
from qtorch._kernels.launch import serve_cpu
from qtorch._rounding.keys import make_noise
from qtorch._rounding.many import round_each
from qtorch._rounding.paths import kernels as rounding
from qtorch._rounding.paths.kernels import round_by_package
from qtorch._rounding.plan import make_plan

CPU = torch.device("cpu")
X = torch.linspace(-9, 9, 300)


@pytest.fixture
def chosen(monkeypatch):
    """Sets QTORCH_KERNELS, which is read once."""

    def choose(value):
        monkeypatch.setenv("QTORCH_KERNELS", value)
        serve_cpu.cache_clear()

    yield choose
    serve_cpu.cache_clear()


def test_a_wrong_choice_names_the_allowed_ones(chosen):
    chosen("triton")
    for call in (lambda: qtorch.quantize(X, "e5m2"), lambda: qtorch.decode(X.to(torch.uint8), "e5m2")):
        with pytest.raises(ValueError, match="QTORCH_KERNELS='triton'; allowed are c, inductor"):
            call()


def test_who_is_asked(chosen, monkeypatch):
    """Packages serve all calls that have them, and C none of these."""
    asked = []
    monkeypatch.setattr(packages, "load", lambda name, *others: asked.append(name))
    for cached in (rounding.load, rounding.load_decoder, launch.load):
        cached.cache_clear()
    chosen("inductor")
    try:
        assert_same_bits(qtorch.quantize(X, "e5m2"), qcore.quantize(X.numpy(), "e5m2"))
        qtorch.encode(X, "e5m2", "up"), qtorch.decode(X.to(torch.uint8), "e5m2")
        qtorch.quantization.fake_quantize_per_tensor_affine(X, 0.5, 0, 0, 255)
        y = X.clone()
        round_each([y], [X], qcore.parse("e5m2"), qcore.Rounding.AWAY)
        assert_same_bits(y, qcore.quantize(X.numpy(), "e5m2", "away"))
        assert len(asked) == 5
    finally:
        for cached in (rounding.load, rounding.load_decoder, launch.load):
            cached.cache_clear()


@pytest.mark.heavy
def test_calls_by_inductor(chosen):
    """Rounding of both kinds of carriers' lanes, codes back and forth, blocks, and fake quantization."""
    chosen("inductor")
    rows = X.reshape(10, 30)
    for x, number, mode in ((X, "e5m2", "nearest"), (X.double(), "fixed(8,4)", "up"), (rows, "block(8,dim=0)", "odd")):
        assert_same_bits(qtorch.quantize(x, number, mode), qcore.quantize(x.numpy(), number, mode))
    codes = qtorch.encode(X, "posit8")
    assert_same_bits(codes, qcore.encode(X.numpy(), "posit8"))
    assert_same_bits(qtorch.decode(codes, "posit8"), qcore.decode(codes.numpy(), "posit8"))
    expected = torch.fake_quantize_per_tensor_affine(X, 0.05, 3, 0, 255)
    assert_same_bits(qtorch.quantization.fake_quantize_per_tensor_affine(X, 0.05, 3, 0, 255), expected)


@pytest.mark.parametrize(
    ("number", "mode", "dtype"),
    [
        pytest.param("mxfp8_e4m3", "nearest", "float32", marks=pytest.mark.heavy),
        pytest.param("nvfp4", "nearest", "float32", marks=pytest.mark.heavy),
        pytest.param("e4m3fn", "stochastic", "float32", marks=pytest.mark.heavy),
        pytest.param("e4m3fn", "nearest", "float16", marks=pytest.mark.heavy),  # .ci/run takes this one
    ],
)
def test_packages(number, mode, dtype, monkeypatch):
    plan = make_plan(number, mode, getattr(torch, dtype), None, True)
    x = torch.randn(6, 64, dtype=getattr(torch, dtype))
    noise = make_noise(3, 24, 0, x) if plan.stochastic else None
    results = round_by_package(x, plan, noise)
    expected = qcore.encode(x.numpy(), number, mode, key=3 if noise else None)
    if not isinstance(expected, tuple):
        assert_same_bits(results, expected)
        return
    codes, scales = expected
    for one, other in zip(results, (codes, *(scales if isinstance(scales, tuple) else (scales,))), strict=True):
        assert_same_bits(one, other)
