"""Blocks with float32 scales have the same bits in all packages, wherever a format may stand."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import torch
from covering import some
from support import BACKENDS, DTYPES, OTHERS, assert_all_same_bits, assert_same_bits, by_numpy, to_torch
from torch.utils._python_dispatch import TorchDispatchMode

import qcore
import qjax
import qtorch
from qjax.optim import apply_updates, low_precision
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer
from qtorch.recipes import lower

TENSOR, ROWS = "scaled(e4m3fn,{...:None},scale=float32)", "scaled(e4m3fn,{-1:None},scale=float32)"
TILES, COLUMNS = "scaled(int8,{-2:8,-1:16},scale=float32)", "scaled(float(4,3),{-2:5},scale=float32)"
NUMBERS = [TENSOR, ROWS, TILES, COLUMNS]


class Ordinary(TorchDispatchMode):
    """A mode that changes nothing; under any mode rounding runs operation by operation."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def by_operations(function, *given, **named):
    with Ordinary():
        return function(*given, **named)


def hard(dtype=np.float32):
    random = np.random.default_rng(0)
    x = random.standard_normal((3, 16, 48)) * 2.0 ** -random.integers(0, 20, (3, 16, 48))
    with np.errstate(over="ignore"):
        x = np.ldexp(x, random.integers(-149, 126, (3, 16, 1))).astype(dtype)
    x[0, 0], x[0, 1, 3], x[0, 2, 5], x[0, 3] = 0, np.nan, np.inf, -0.0
    return x


EACH = ((0, 0, 0), (1, 1, 1), (2, 2, 0), (3, 3, 0), (1, 3, 0), (0, 2, 1))  # of numbers, dtypes and modes


@some(*EACH, (3, 0, 2), number=NUMBERS, dtype=[*DTYPES], mode=["nearest", "stochastic", "up"])
def test_torch(number, dtype, mode):
    x = hard(DTYPES[dtype])
    expected = by_numpy(x, number, mode, 6)
    for name in ("torch kernel", "torch ops"):
        assert_same_bits(BACKENDS[name](x, number, mode, 6), expected, name)


@pytest.mark.parametrize(
    ("number", "dtype", "mode"), [(ROWS, np.float32, "nearest"), (TILES, ml_dtypes.bfloat16, "stochastic")]
)
def test_jax(number, dtype, mode):
    assert_same_bits(OTHERS["jax jit"](hard(dtype), number, mode, 6), by_numpy(hard(dtype), number, mode, 6))


def test_a_compiled_program():
    x = to_torch(hard())
    torch.compiler.reset()
    program = torch.compile(
        lambda x: qtorch.quantize(x, ROWS, "stochastic", key=6), backend="aot_eager", fullgraph=True
    )
    assert_same_bits(program(x), by_numpy(hard(), ROWS, "stochastic", 6))


def test_quantizers_layers_and_optimizers_take_them():
    random = np.random.default_rng(1)
    w, x = random.standard_normal((8, 16), np.float32), random.standard_normal((4, 16), np.float32)
    q = Quantizer(ROWS, ROWS, "nearest", "nearest")
    given = torch.from_numpy(x).requires_grad_()
    y = q(given)
    y.backward(torch.from_numpy(x[:, ::-1].copy()))
    assert_same_bits(y.detach(), qcore.quantize(x, ROWS))
    assert_same_bits(given.grad, qcore.quantize(x[:, ::-1].copy(), ROWS))

    layer = torch.nn.Linear(16, 8, bias=False)
    layer.weight.data = torch.from_numpy(w.copy())
    wide = layer(torch.from_numpy(x)).detach().numpy()
    lower(layer, ["linear"], ROWS, None, "nearest")
    assert_same_bits(layer(torch.from_numpy(x)).detach(), qcore.quantize(wide, ROWS))

    p = torch.nn.Parameter(torch.from_numpy(w.copy()))
    p.grad = torch.from_numpy(x[:, :16].repeat(2, 0))
    OptimLP(torch.optim.SGD([p], lr=0.5), weight_quant=TENSOR).step()
    tx = low_precision(optax.sgd(0.5), weight_quant=TENSOR)
    updates, state = tx.update(jnp.asarray(x.repeat(2, 0)), tx.init(jnp.asarray(w)), jnp.asarray(w))
    expected = qcore.quantize(w - np.float32(0.5) * x.repeat(2, 0), TENSOR)
    assert_same_bits(p.detach(), expected)
    assert_same_bits(np.asarray(apply_updates(jnp.asarray(w), updates, state)), expected)
    fn = qjax.recipes.lower(lambda x: x @ w.T, ["linear"], ROWS, None, "nearest")
    assert_same_bits(np.asarray(fn(jnp.asarray(x))), qcore.quantize(np.asarray(jax.jit(lambda x: x @ w.T)(x)), ROWS))


def test_statistics():
    """Within the block's range r * 448 nothing saturates; subnormal is what lies below r * 2^-6."""
    x = np.float32([[448, 448 * 2.0**-16, 1], [7, 7 * 2.0**-20, -7]])
    found = qcore.insight.statistics_of(x, ROWS)
    assert_same_bits(qtorch.quantize(to_torch(x), ROWS), qcore.quantize(x, ROWS))
    assert (int(found.saturated), int(found.elements)) == (0, 6)


@some(*EACH, number=NUMBERS, dtype=[*DTYPES], mode=["nearest", "stochastic"])
def test_codes(number, dtype, mode):
    """Codes, and float32 numbers of blocks that decode multiplies with; decoded they are what quantize returns."""
    x = hard(DTYPES[dtype])
    if number in (TILES, COLUMNS):
        x = np.nan_to_num(x, nan=1)
    expected, scales = qcore.encode(x, number, mode, key=6)
    numbers = qcore.decode(expected, number, DTYPES[dtype], scales=scales)
    assert scales.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert (numbers == qcore.quantize(x, number, mode, key=6))[~np.isnan(x)].all()
    for way in (lambda f, *given, **named: f(*given, **named), by_operations):
        found = way(qtorch.encode, to_torch(x), number, mode, key=6)
        assert_all_same_bits(found, (expected, scales))
        assert_same_bits(way(qtorch.decode, found[0], number, to_torch(x).dtype, scales=found[1]), numbers)


@pytest.mark.parametrize("number", [ROWS, TILES])
def test_codes_in_jax(number):
    found = jax.jit(lambda x: qjax.encode(x, number, "stochastic", key=6))(hard())
    expected = qcore.encode(hard(), number, "stochastic", key=6)
    assert_all_same_bits(found, expected)
    decoded = jax.jit(lambda codes, scales: qjax.decode(codes, number, scales=scales))(*found)
    assert_same_bits(decoded, qcore.decode(expected[0], number, scales=expected[1]))


def test_scales_of_others():
    """Any float32 number is a scale: beyond the range results saturate, and NaN and infinity are NaN."""
    codes = np.arange(256, dtype=np.uint8)[None].repeat(8, 0)
    scales = np.float32([[1], [-2], [2.0**-140], [3e38], [0], [np.nan], [np.inf], [2.0**-126]])
    expected = qcore.decode(codes, ROWS, scales=scales)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = qcore.decode(codes, "e4m3fn", np.float64) * scales.astype(np.float64)
    wide[6] = np.nan
    np.testing.assert_array_equal(
        expected, np.clip(wide, *(np.finfo(np.float32).max * np.float64([-1, 1]))).astype("f4")
    )
    given = torch.from_numpy(codes), ROWS
    assert_same_bits(qtorch.decode(*given, scales=torch.from_numpy(scales)), expected)
    assert_same_bits(by_operations(qtorch.decode, *given, scales=torch.from_numpy(scales)), expected)
    assert_same_bits(np.asarray(qjax.decode(codes, ROWS, scales=scales)), expected)
    for decode, one, other in (
        (qcore.decode, codes, codes[:, :1]),
        (qtorch.decode, torch.from_numpy(codes), torch.from_numpy(codes[:, :1])),
        (qjax.decode, codes, codes[:, :1]),
    ):
        with pytest.raises(TypeError, match=r"uint8; allowed is a .* of floats for scale='float32'"):
            decode(one, ROWS, scales=other)


def test_compiled_codes():
    def program(x):
        codes, scales = qtorch.encode(x, ROWS)
        return codes, scales, qtorch.decode(codes, ROWS, scales=scales)

    torch.compiler.reset()
    found = torch.compile(program, backend="aot_eager", fullgraph=True)(to_torch(hard()))
    expected = qcore.encode(hard(), ROWS)
    for one, other in zip(found, (*expected, qcore.decode(expected[0], ROWS, scales=expected[1])), strict=True):
        assert_same_bits(one, other)
