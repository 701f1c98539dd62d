"""qjax under JAX's transformations: jit, vmap, grad, scan, x64, strict promotion."""

import logging
import re
from logging.handlers import BufferingHandler

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import pairwise, some
from support import assert_same_bits, equations

import qcore
import qjax
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint

F = FloatingPoint(5, 2)
X = np.random.default_rng(0).standard_normal((6, 50)).astype(np.float32)


@pairwise(
    number=[F, FloatingPoint(9, 3), FixedPoint(8, 4), BlockFloatingPoint(8, 0)],
    mode=["nearest", "stochastic"],
    promotion=["standard", "strict"],
    x64=[False, True],
)
def test_configurations(number, mode, promotion, x64):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion):
        x = jnp.asarray(X)
        expected = qcore.quantize(X, number, mode, key=4)
        assert_same_bits(qjax.quantize(x, number, mode, key=4), expected)
        assert_same_bits(jax.jit(lambda x: qjax.quantize(x, number, mode, key=4))(x), expected)
        assert qjax.quantize(x, number, mode, key=4).dtype == jnp.float32


def test_vmap_repeats_the_words_of_one_key_and_takes_a_key_an_example():
    rows = np.stack([qcore.quantize(row, F, "stochastic", key=4) for row in X])
    assert_same_bits(jax.vmap(lambda row: qjax.quantize(row, F, "stochastic", key=4))(X), rows)
    keys = jax.random.split(jax.random.key(1), len(X))
    words = np.asarray(jax.random.key_data(keys))
    rows = np.stack(
        [qcore.quantize(row, F, "stochastic", key=tuple(map(int, key))) for row, key in zip(X, words, strict=True)]
    )
    assert_same_bits(jax.vmap(lambda row, key: qjax.quantize(row, F, "stochastic", key=key))(X, keys), rows)
    blocks = np.stack([qcore.quantize(row, BlockFloatingPoint(4), "nearest") for row in X])
    assert_same_bits(jax.vmap(lambda row: qjax.quantize(row, BlockFloatingPoint(4), "nearest"))(X), blocks)


@pytest.mark.parametrize("number", [F, FixedPoint(4, 2), BlockFloatingPoint(4, 0)], ids=str)
def test_gradient_is_straight_through(number):
    weights = jnp.asarray(X * 3)

    def loss(x, key):
        return (qjax.quantize(x, number, "stochastic", key=key) * weights).sum()

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert_same_bits(gradient(jnp.asarray(X), jax.random.key(0)), weights)
    assert_same_bits(jax.vmap(jax.grad(lambda x: 2 * qjax.quantize(x, F, "nearest")))(jnp.ones(3)), np.float32([2] * 3))


def test_gradient_is_exact_where_adding_the_difference_is_not():
    assert jax.grad(lambda x: qjax.quantize(x, FloatingPoint(4, 3), "nearest"))(jnp.float32(1e30)) == 1


def test_scan():
    def step(carry, key):
        carry = qjax.quantize(carry + 0.3, F, "stochastic", key=key)
        return carry, carry

    keys = jax.random.split(jax.random.key(3), 5)
    _, scanned = jax.lax.scan(step, jnp.zeros(7), keys)
    carry, expected = np.zeros(7, np.float32), []
    for key in np.asarray(jax.random.key_data(keys)):
        carry = qcore.quantize(carry + np.float32(0.3), F, "stochastic", key=tuple(map(int, key)))
        expected.append(carry)
    assert_same_bits(scanned, np.stack(expected))


def test_neighbouring_operations_do_not_change_the_result():
    """XLA contracts a * b + c and flushes float32 subnormals; the law is integers and does not feel it."""
    x = jnp.asarray(np.float32([1e-40, -3e-41, 1e-45, 1.0]))
    number = FloatingPoint(8, 7)
    y = jax.jit(lambda x: (qjax.quantize(x, number, "nearest"), qjax.quantize(x, number, "nearest") * 3 + 1))(x)[0]
    assert_same_bits(y, qcore.quantize(np.asarray(x), number, "nearest"))


@pytest.fixture
def messages():
    """The records of JAX's loggers."""
    handler = BufferingHandler(10_000)
    logging.getLogger("jax").addHandler(handler)
    yield handler.buffer
    logging.getLogger("jax").removeHandler(handler)


def test_one_compilation_serves_all_formats_of_a_kind(messages):
    x = jnp.ones((17, 3))
    with jax.log_compiles():
        qjax.quantize(x, FloatingPoint(5, 1), "nearest")
        compiled = [one.getMessage() for one in messages]
        assert any("Finished XLA compilation" in message for message in compiled)
        for man in range(1, 10):
            qjax.quantize(x, FloatingPoint(5, man), "nearest")
            qjax.quantize(x, FixedPoint(8, man), "nearest")
    assert len(messages) == len(compiled)


def test_no_float_arithmetic_in_the_law():
    allowed_on_floats = {"bitcast_convert_type", "reshape", "jit", "pjit", "custom_jvp_call", "convert_element_type"}
    for number in (F, FloatingPoint(9, 2), FixedPoint(8, 4), BlockFloatingPoint(8, 0)):
        program = jax.make_jaxpr(lambda x, number=number: qjax.quantize(x, number, "stochastic", key=1))(X)
        for _, equation in equations(program.jaxpr):
            is_float = any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.invars)
            assert not is_float or equation.primitive.name in allowed_on_floats, equation.primitive.name


def test_qpytorch_calls():
    """The same arguments as QPyTorch's functions, positional and by keyword."""
    x = jnp.asarray(X)
    assert_same_bits(qjax.quant.float_quantize(x, 5, 2, "nearest"), qcore.quantize(X, F, "nearest"))
    fixed = FixedPoint(8, 4, True, True)
    expected = qcore.quantize(X, fixed, "stochastic", key=2)
    assert_same_bits(qjax.quant.fixed_point_quantize(x, 8, 4, True, True, "stochastic", 2), expected)
    assert_same_bits(qjax.quant.fixed_point_quantize(x, wl=8, fl=4, symmetric=True, key=2), expected)
    expected = qcore.quantize(X, BlockFloatingPoint(8, 1), "nearest")
    assert_same_bits(qjax.quant.block_quantize(x, wl=8, dim=1, rounding="nearest"), expected)


@pytest.mark.heavy
def test_64_bit_starts_without_jit():
    """Where NumPy's scalars would warn of an overflow."""
    start = (2**31 << 32) - 20
    with jax.disable_jit():
        y = qjax.quantize(jnp.asarray(X), F, "stochastic", key=2**64 - 1, start=start)
    assert_same_bits(y, qcore.quantize(X, F, "stochastic", key=2**64 - 1, start=start))


@some(
    *((i, i % 4) for i in range(6)),
    number=["block(8)", "block(8,dim=0)", "block(8,dim=-1)", "scaled(e4m3fn,{-1:None})", "mxfp4", "nvfp4"],
    shape=[(64, 128), (3, 96, 16), (40, 4096), (6, 40)],
)
def test_maxima_in_steps(number, shape):
    """Of sizes that are multiples of a step, along and across vectors; the largest numbers lie anywhere."""
    x = np.random.default_rng(5).standard_cauchy(shape).astype(np.float32)
    assert_same_bits(qjax.quantize(jnp.asarray(x), number, "nearest"), qcore.quantize(x, number, "nearest"))


def test_what_belongs_to_a_block_is_computed_once():
    """XLA would compute a block's scale and its reciprocal again for each element: the last loop divides nothing."""
    program = jax.jit(lambda x: qjax.quantize(x, "nvfp4", "nearest"))
    text = program.lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile().as_text()
    (last,) = re.findall(r"ROOT \S+ = f32\[64,64\]\S* fusion\(.*calls=(%[\w.]+)", text[text.index("ENTRY") :])
    loop = text[text.index(f"\n{last} (") :]
    assert "divide(" not in loop[: loop.index("\n}")]
    assert text.count("divide(") > 0
