"""qjax's fake quantization: NumPy's bits in every program that XLA makes, gradients, transformations, shardings."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from affine_support import SPECIAL, ties
from covering import some, usually
from jax.sharding import NamedSharding, PartitionSpec
from support import DTYPES, assert_same_bits

import qcore.affine as reference
from qcore.affine import INT8, INT32, UINT8, AffineInteger, QParams
from qjax.quantization import (
    choose_qparams_dynamic,
    fake_quantize,
    fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine,
)

FORMS = [AffineInteger.of_width(bits, signed=bits % 3 > 0) for bits in range(2, 17)]
FORMS += [UINT8, INT8.reduced(), AffineInteger(-5, 9), INT32]


def zero_points(rng, form):
    """An even and an odd one, and the one of the symmetric scheme."""
    if form == INT32:
        return [0]
    even, odd = (int(rng.integers(form.qmin, form.qmax)) // 2 * 2 + parity for parity in (0, 1))
    return [even, odd, form.middle]


def case(rng, form, zero_point, count=1500):
    scale = np.float32(2.0 ** rng.uniform(-10, 4))
    wide = form if form != INT32 else AffineInteger.of_width(16)
    return ties(rng, scale, zero_point, wide, count), scale, zero_point


def per_tensor(form):
    return lambda x, scale, zero_point: fake_quantize(x, QParams(scale, zero_point), form)


@pytest.mark.parametrize(
    ("x64", "forms"), [(False, FORMS[::2]), (True, FORMS[::4]), pytest.param(False, FORMS, marks=pytest.mark.heavy)]
)
def test_forward(x64, forms):
    """Eager, and in a program with an addition that XLA would contract."""
    rng = np.random.default_rng(1)
    promotion = "strict" if x64 else "standard"
    with jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion):
        for form in forms:
            added = jax.jit(lambda x, s, z, c, form=form: per_tensor(form)(x, s, z) + c)
            for zero_point in zero_points(rng, form):
                x, scale, zero_point = case(rng, form, zero_point)
                qparams = QParams.of(scale, zero_point)
                expected, _ = reference.fake_quantize(x, qparams, form)
                assert_same_bits(fake_quantize(jnp.asarray(x), qparams, form), expected, f"eager {form}")
                c = rng.normal(size=x.shape).astype(np.float32) * scale
                with np.errstate(all="ignore"):
                    expected = expected + c
                assert_same_bits(added(x, qparams.scale, qparams.zero_point, c), expected, f"added {form}")


@pytest.mark.parametrize("form", usually((UINT8,), (UINT8, INT8, AffineInteger.of_width(4))))
def test_constants(form):
    rng = np.random.default_rng(2)
    for zero_point in zero_points(rng, form):
        x, scale, zero_point = case(rng, form, zero_point, 20_000)
        expected, _ = reference.fake_quantize(x, QParams.of(scale, zero_point), form)
        arguments = (float(scale), zero_point, form.qmin, form.qmax)
        assert_same_bits(jax.jit(lambda x, a=arguments: fake_quantize_per_tensor_affine(x, *a))(x), expected)
        program = jax.jit(lambda x, a=arguments: fake_quantize_per_tensor_affine(x, *a) + 0.7)
        assert_same_bits(program(x), expected + np.float32(0.7))
        with jax.disable_jit():
            assert_same_bits(fake_quantize_per_tensor_affine(jnp.asarray(x), *arguments), expected)


@some((0, 0), (1, 1), (2, 2), form=[UINT8, INT8, AffineInteger.of_width(11)], axis=[0, 1, 2])
def test_channels(form, axis):
    rng = np.random.default_rng(3)
    cases = [case(rng, form, zero_point, 270) for zero_point in zero_points(rng, form)]
    x = np.moveaxis(np.stack([x.reshape(20, -1) for x, _, _ in cases]), 0, axis)
    scales, zeros = np.float32([scale for _, scale, _ in cases]), np.int32([zero for _, _, zero in cases])
    expected, mask = reference.fake_quantize(x, QParams(scales, zeros, axis), form)
    ends = form.qmin, form.qmax
    assert_same_bits(fake_quantize_per_channel_affine(jnp.asarray(x), list(scales), list(zeros), axis, *ends), expected)
    c = rng.normal(size=x.shape).astype(np.float32)
    program = jax.jit(lambda x, s, z, c: fake_quantize_per_channel_affine(x, s, z, axis, *ends) + c)
    assert_same_bits(program(x, scales, zeros, c), expected + c)
    gradient = jax.grad(lambda x: fake_quantize_per_channel_affine(x, scales.tolist(), zeros, axis, *ends).sum())
    assert_same_bits(jax.jit(gradient)(x), mask.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    rng = np.random.default_rng(4)
    x, scale, zero_point = case(rng, UINT8, 77, 3000)
    promotion = jax.numpy_dtype_promotion("strict")
    with np.errstate(all="ignore"), jax.enable_x64(dtype == "float64"), promotion:
        x = np.concatenate([x.astype(DTYPES[dtype]), SPECIAL.astype(DTYPES[dtype])])
        if dtype == "float64":
            x[:1000] *= 1 + 2.0**-40
        qparams = QParams.of(scale, zero_point)
        expected, mask = reference.fake_quantize(x, qparams, UINT8)
        y, back = jax.vjp(lambda x: fake_quantize(x, qparams), jnp.asarray(x))
        assert_same_bits(y, expected)
        assert_same_bits(back(jnp.ones_like(y))[0], mask.astype(x.dtype))


def test_half_precision_next_to_other_operations():
    """XLA computes sums of bfloat16 in float32, and may leave out the rounding in between."""
    rng = np.random.default_rng(5)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x, c = (rng.normal(size=20_000).astype(np.float32).astype(dtype) * dtype(3) for _ in range(2))
        qparams = QParams.of(0.0371, 13)
        before, _ = reference.fake_quantize(x + c, qparams, INT8)
        assert_same_bits(jax.jit(lambda x, c, q=qparams: fake_quantize(x + c, q, INT8))(x, c), before)
        after = reference.fake_quantize(x, qparams, INT8)[0]
        assert_same_bits(jax.jit(lambda x, c, q=qparams: fake_quantize(x, q, INT8) + c)(x, c), after + c)
        expected = after.astype(np.float32) * np.float32(1.1)
        assert_same_bits(jax.jit(lambda x, q=qparams: fake_quantize(x, q, INT8).astype("float32") * 1.1)(x), expected)


def test_gradients():
    rng = np.random.default_rng(6)
    for form in (UINT8, INT8, AffineInteger.of_width(3)):
        x, scale, zero_point = case(rng, form, form.qmax - 1, 3000)
        _, mask = reference.fake_quantize(x, QParams.of(scale, zero_point), form)
        incoming = rng.normal(size=x.shape).astype(np.float32)
        incoming[:4] = -0.0, np.inf, -np.inf, np.nan
        expected = np.where(mask, incoming, np.float32(0))

        def pull(x, scale, zero_point, incoming, form=form):
            y, back = jax.vjp(per_tensor(form), x, scale, zero_point)
            return y, *back(incoming)

        for pulled in (pull, jax.jit(pull)):
            _, own, of_scale, of_zero_point = pulled(x, jnp.float32(scale), jnp.int32(zero_point), incoming)
            assert_same_bits(own, expected)
            assert of_scale == 0
            assert of_zero_point.dtype == jax.dtypes.float0
        push = jax.jit(lambda *parts, form=form: jax.jvp(per_tensor(form), parts[:3], parts[3:]))
        parameters = (x, jnp.float32(scale), jnp.int32(zero_point))
        tangents = (incoming, jnp.float32(1), np.zeros((), jax.dtypes.float0))
        assert_same_bits(push(*parameters, *tangents)[1], expected)
    both = jax.vmap(jax.grad(lambda x: per_tensor(form)(x, *parameters[1:])))(x)
    assert_same_bits(both, mask.astype(np.float32))
    second = jax.grad(jax.grad(lambda x: fake_quantize(x, QParams.of(0.5, 0)) ** 2))
    assert second(jnp.float32(1.1)) == 2
    assert second(jnp.float32(-1.1)) == 0


def test_vmap_and_scan():
    rng = np.random.default_rng(7)
    x = (rng.normal(size=(5, 3, 40)) * 9).astype(np.float32)
    scales, zeros = np.float32(2.0 ** rng.uniform(-4, -2, 5)), rng.integers(-128, 128, 5).astype(np.int32)
    expected, _ = reference.fake_quantize(x, QParams(scales, zeros, 0), INT8)
    assert_same_bits(jax.vmap(per_tensor(INT8))(x, scales, zeros), expected)
    _, scanned = jax.lax.scan(lambda carry, part: (carry, per_tensor(INT8)(*part)), 0, (x, scales, zeros))
    assert_same_bits(scanned, expected)
    channels = QParams(scales, zeros, 1)
    batch = (rng.normal(size=(4, 5, 6, 5)) * 9).astype(np.float32)
    expected, _ = reference.fake_quantize(batch, QParams(scales, zeros, 3), INT8)
    over_channels = jax.vmap(lambda x: fake_quantize(jnp.moveaxis(x, 2, 1), channels, INT8))
    assert_same_bits(over_channels(batch), np.moveaxis(expected, 3, 2))


@pytest.mark.parametrize("axis", [None, 0])
def test_shardings(axis):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(8)
    x = (rng.normal(size=(16, 24)) * 40).astype(np.float32)
    qparams = QParams.of(0.37, 3) if axis is None else QParams.of(np.linspace(0.1, 0.9, 16), np.arange(16), axis)
    expected, mask = reference.fake_quantize(x, qparams, INT8)
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    spread = jax.device_put(x, sharding)
    y, back = jax.vjp(lambda x: fake_quantize(x, qparams, INT8), spread)
    assert_same_bits(y, expected)
    assert_same_bits(back(jax.device_put(np.ones_like(x), sharding))[0], mask.astype(np.float32))
    assert y.sharding.is_equivalent_to(sharding, 2)
    program = jax.jit(lambda x: fake_quantize(x, qparams, INT8)).lower(spread).compile().as_text()
    assert "all-gather" not in program
    assert "all-reduce" not in program


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("form", [UINT8, INT8.reduced()], ids=str)
def test_dynamic_parameters(form, x64):
    """In float64, inside a program too, whether or not x64 is enabled outside."""
    rng = np.random.default_rng(9)
    ends = np.sort(rng.normal(size=(2, 4000)) * 2.0 ** rng.integers(-30, 30, 4000), axis=0).astype(np.float32)
    expected = reference.choose_qparams_dynamic(*ends, form)
    with jax.enable_x64(x64):
        program = jax.jit(jax.vmap(lambda low, high: choose_qparams_dynamic(low, high, form)))
        for actual in (program(*ends), choose_qparams_dynamic(*map(jnp.asarray, ends), form)):
            assert_same_bits(actual.scale, expected.scale)
            assert_same_bits(actual.zero_point, expected.zero_point)


X = jnp.ones((2, 3))
Q = QParams.of(0.1, 0)
BAD = {
    "x is a list": lambda: fake_quantize([1.0], Q),
    "x has dtype float64; allowed only after": lambda: fake_quantize(np.ones(3), Q),
    "x has dtype int32; allowed are float32": lambda: fake_quantize(jnp.arange(3), Q),
    "qparams is a tuple; allowed is a QParams": lambda: fake_quantize(X, (0.1, 0)),
    "dtype='int9'; allowed are quint8": lambda: fake_quantize(X, Q, "int9"),
    "dtype=8; allowed are quint8": lambda: fake_quantize(X, Q, 8),
    "scale=inf; allowed": lambda: fake_quantize_per_tensor_affine(X, jnp.float32(jnp.inf), 0, 0, 255),
    "scale=nan; allowed": lambda: jax.jit(lambda x: fake_quantize_per_tensor_affine(x, np.nan, 0, 0, 255))(X),
    "zero_point=0.5; allowed are integers": lambda: fake_quantize_per_tensor_affine(X, 1.0, 0.5, 0, 255),
    "zero_point is float32; allowed is an array of int32": lambda: fake_quantize_per_tensor_affine(X, 1.0, X, 0, 255),
    "scale is int32; allowed is an array of float32": lambda: fake_quantize_per_tensor_affine(X, jnp.int32(1), 0, 0, 9),
    "qmax=1.5 is a float": lambda: fake_quantize_per_tensor_affine(X, 1.0, 0, 0, 1.5),
    r"zero_point has shape \(\); allowed is \(2,\) for axis=0": lambda: fake_quantize_per_channel_affine(
        X, [1, 1], 0, 0, 0, 255
    ),
    r"scale has shape \(2,\); allowed is \(\)": lambda: jax.jit(per_tensor(INT8))(X, jnp.ones(2), jnp.int32(0)),
    "low=2.0 and high=1.0; allowed is low": lambda: choose_qparams_dynamic(jnp.float32(2), jnp.float32(1)),
    "scheme='affine' for all of int32": lambda: choose_qparams_dynamic(jnp.float32(1), jnp.float32(2), INT32),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()


def test_traced_parameters_are_not_checked():
    y = jax.jit(per_tensor(UINT8))(X, jnp.float32(0.5), jnp.int32(-7))
    assert y.shape == X.shape
