"""qjax on NumPy's arrays and scalars: as on JAX's; what JAX would change in silence raises."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from covering import some
from support import DTYPES, assert_same_bits

import qcore
import qjax
from qcore.affine import QParams
from qjax import quantization

X = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32) * 3
MODES = [("nearest", None), ("stochastic", 7)]


def same(actual, expected):
    assert isinstance(actual, jax.Array)
    assert_same_bits(actual, expected)


@some(
    *((i, (i + j) % 2, (i + j) % 4) for i in range(3) for j in (0, 3)),
    number=["e5m2", "fixed", "mxfp4"],
    **{"mode, key": MODES},
    dtype=[*DTYPES],
)
def test_every_carrier(number, mode, key, dtype):
    number = qcore.FixedPoint(8, 4) if number == "fixed" else number
    x = X.astype(DTYPES[dtype])
    with jax.enable_x64(dtype == "float64"):
        for view in (x, x[::2, ::-3], x[:, :0], x[0, 0], x[0, :1].reshape(())):
            array = np.asarray(view)
            if number == "mxfp4" and not array.ndim:
                continue  # which has no last axis
            same(qjax.quantize(view, number, mode, key=key), qcore.quantize(array, number, mode, key=key))


def test_functions_of_qpytorch_and_quantizers():
    same(qjax.float_quantize(X, 5, 2, "nearest"), qcore.quantize(X, "e5m2"))
    same(qjax.fixed_point_quantize(X, 8, 4, key=7), qcore.quantize(X, qcore.FixedPoint(8, 4), "stochastic", key=7))
    same(qjax.block_quantize(X, 8, key=7), qcore.quantize(X, qcore.BlockFloatingPoint(8), "stochastic", key=7))
    same(qjax.quantizer("e5m2")(X, 7), qcore.quantize(X, "e5m2", "stochastic", key=7))
    same(qjax.nnx.Quantizer("e5m2", forward_rounding="nearest")(X), qcore.quantize(X, "e5m2"))


@pytest.mark.parametrize("number", ["e5m2", "e2m1fn", "mxfp4", "nvfp4", "int16"])
def test_codes(number):
    actual, expected = qjax.encode(X, number), qcore.encode(X, number)
    for mine, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        same(mine, right)
    codes, scales = expected if isinstance(expected, tuple) else (expected, None)
    same(qjax.decode(codes, number, scales=scales), qcore.decode(codes, number, scales=scales))


@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "u8"])
def test_codes_of_any_integers(dtype):
    """Bits above a code's highest are ignored, so that 64-bit integers lose nothing."""
    codes = np.arange(256).astype(dtype)
    if dtype in ("i8", "u8"):
        codes += np.array(0xABCD << 40, dtype)
    same(qjax.decode(codes, "e5m2"), qcore.decode(codes, "e5m2"))
    same(qjax.pack(codes, 5), qcore.pack(codes, 5))
    same(qjax.unpack(qcore.pack(codes, 5), 5, 256), qcore.unpack(qcore.pack(codes, 5), 5, 256))


def test_affine_integers():
    qparams, x = QParams.of(0.25, 3), jnp.asarray(X)
    same(quantization.fake_quantize(X, qparams), quantization.fake_quantize(x, qparams))
    same(
        quantization.quantize_affine(X, qparams, "qint8").int_repr(),
        quantization.quantize_affine(x, qparams, "qint8").int_repr(),
    )
    for observer in (quantization.MinMaxObserver(), quantization.HistogramObserver()):
        mine, right = (observer.update(observer.init(), array) for array in (X, x))
        for leaf, expected in zip(jax.tree.leaves(mine), jax.tree.leaves(right), strict=True):
            same(leaf, expected)
    module = quantization.FakeQuantize()
    same(module.apply(module.init(), X)[0], module.apply(module.init(), x)[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: qjax.quantize(x, "e5m2"),
        lambda x: qjax.encode(x, "e5m2"),
        qjax.quantizer(),
        lambda x: quantization.fake_quantize(x, QParams.of(0.25, 3)),
        lambda x: quantization.MinMaxObserver().update(quantization.MinMaxObserver().init(), x),
    ],
)
def test_what_jax_would_change_in_silence_raises(call):
    for x in (X.astype(np.float64), np.float64(1.5), X[:0].astype(np.float64)):
        with pytest.raises(TypeError, match=r"x has dtype float64; allowed only after .*jax_enable_x64"):
            call(x)
    with pytest.raises(TypeError, match="x has dtype >f4; allowed is this machine's byte order: <f4"):
        call(X.astype(">f4"))
    for x in (X.astype(np.int32), np.bool_(True), X.astype(ml_dtypes.float8_e5m2), np.array("x")):
        with pytest.raises(TypeError, match=r"x has dtype .*; allowed are float32"):
            call(x)
    for x in (1.0, 1, [1.0], None):
        with pytest.raises(TypeError, match=f"x is a {type(x).__name__}; allowed is a jax.Array or NumPy array"):
            call(x)


def test_codes_are_integers():
    for codes in (X, 3, [3]):
        with pytest.raises(TypeError, match=r"allowed is a jax\.Array or NumPy array of integers"):
            qjax.decode(codes, "e5m2")


@pytest.mark.parametrize("call", [lambda x: qjax.quantize(x, "e5m2"), qjax.quantizer()])
def test_results_do_not_change_with_the_input(call):
    """As XLA would have it that reads NumPy's memory where it is."""
    for _ in range(20):
        x = np.ones(2**20, np.float32)
        y = call(x)
        x[:] = 2
        assert (np.asarray(y) == 1).all()
