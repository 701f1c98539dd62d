"""Derivatives of rounding in JAX, forward and backward: tangents and gradients pass straight through, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import some
from support import assert_same_bits, equations

import qcore
import qjax
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32) * 3
HARD = [0, -0.0, 1e-45, -1e-40, np.inf, -np.inf, np.nan, 3e38, 1]
T = np.concatenate([np.float32(HARD), np.random.default_rng(1).standard_normal(55).astype(np.float32)]).reshape(4, 16)
NUMBERS = [FloatingPoint(5, 2), FixedPoint(4, 2), BlockFloatingPoint(4, 0), "mxfp4", "nvfp4", "posit8"]
MODES = [("nearest", None), ("stochastic", 7)]
FIXED = FixedPoint(4, 2)
INSIDE = (np.round(X * 4) >= -8) & (np.round(X * 4) <= 7)  # where rounding to nearest does not clamp


def each(test):
    """Every format in one mode, in the other one among the heavy tests."""
    return some(*((i, i % 2) for i in range(len(NUMBERS))), **{"number": NUMBERS, "mode, key": MODES})(test)


@each
def test_tangents_and_gradients_pass_as_they_are(number, mode, key):
    def f(x):
        return qjax.quantize(x, number, mode, key=key)

    expected = qcore.quantize(X, number, mode, key=key)
    transformed = jax.jit if mode == "nearest" else lambda g: g
    y, tangent = transformed(lambda x, t: jax.jvp(f, (x,), (t,)))(jnp.asarray(X), jnp.asarray(T))
    assert_same_bits(y, expected)
    assert_same_bits(tangent, T)
    y, linear = jax.linearize(f, jnp.asarray(X))
    assert_same_bits(y, expected)
    assert_same_bits(transformed(linear)(jnp.asarray(T)), T)
    y, pull = jax.vjp(f, jnp.asarray(X))
    assert_same_bits(y, expected)
    assert_same_bits(transformed(pull)(jnp.asarray(T))[0], T)


@each
def test_backward_passes_compute_nothing(number, mode, key):
    y, pull = jax.vjp(lambda x: qjax.quantize(x, number, mode, key=key), jnp.asarray(X))
    _, push = jax.linearize(lambda x: qjax.quantize(x, number, mode, key=key), jnp.asarray(X))
    for program in (jax.make_jaxpr(pull)(y), jax.make_jaxpr(push)(y)):
        names = {equation.primitive.name for _, equation in equations(program.jaxpr)}
        assert names <= {"jit", "pjit"}, program  # which are empty


def test_jacobians_and_hessians():
    x = jnp.asarray(X[0])

    def f(x):
        return qjax.quantize(x, "e5m2")

    for jacobian in (jax.jacfwd, jax.jacrev):
        assert_same_bits(jax.jit(jacobian(f))(x), np.eye(16, dtype=np.float32))
    for hessian in (jax.hessian, lambda g: jax.jacrev(jax.jacrev(g)), lambda g: jax.jacfwd(jax.jacfwd(g))):
        assert_same_bits(jax.jit(hessian(lambda x: (f(x) ** 2).sum()))(x), 2 * np.eye(16, dtype=np.float32))


def test_vmap_scan_and_checkpoint():
    keys = jax.random.split(jax.random.key(0), 4)

    def f(x, key):
        return qjax.quantize(x, "e5m2", "stochastic", key=key)

    expected = [qcore.quantize(x, "e5m2", "stochastic", key=words(key)) for x, key in zip(X, keys, strict=True)]
    push = jax.vmap(lambda x, key, t: jax.jvp(lambda x: f(x, key), (x,), (t,)))
    for program in (push, jax.jit(push)):
        y, tangents = program(X, keys, T)
        assert_same_bits(y, np.stack(expected))
        assert_same_bits(tangents, T)

    def steps(x):
        def step(carry, key):
            y = f(jax.checkpoint(f)(x, key), key)
            return carry + y, y

        return jax.lax.scan(step, jnp.zeros_like(x), keys)

    _, pull = jax.vjp(steps, jnp.asarray(X[0]))
    _, tangents = jax.jvp(steps, (jnp.asarray(X[0]),), (jnp.asarray(T[0]),))
    only = np.where(np.arange(4)[:, None] == 2, T, np.float32(0))
    assert_same_bits(pull((jnp.zeros(16), jnp.asarray(only)))[0], T[2])
    assert_same_bits(tangents[1], np.stack([T[0]] * 4))


def words(key):
    return tuple(map(int, np.asarray(jax.random.key_data(key))))


def test_shard_map():
    mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("a")

    def part(x):
        key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("a"))
        return qjax.quantize(x, "e5m2", "stochastic", key=key)

    f = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec))
    keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(4)]
    expected = [qcore.quantize(x[None], "e5m2", "stochastic", key=words(key)) for x, key in zip(X, keys, strict=True)]
    y, tangent = jax.jvp(f, (jnp.asarray(X),), (jnp.asarray(T),))
    assert_same_bits(y, np.concatenate(expected))
    assert_same_bits(tangent, T)
    assert_same_bits(jax.vjp(f, jnp.asarray(X))[1](jnp.asarray(T))[0], T)


def test_codes_have_no_derivative():
    for number in ("e5m2", "mxfp4", "nvfp4"):
        codes, tangents = jax.jvp(lambda x, n=number: qjax.encode(x, n), (jnp.asarray(X),), (jnp.asarray(T),))
        for code, tangent in zip(jax.tree.leaves(codes), jax.tree.leaves(tangents), strict=True):
            assert tangent.dtype == jax.dtypes.float0 or not np.any(tangent)
            assert code.shape == tangent.shape
        assert_same_bits(jax.tree.leaves(codes)[0], jax.tree.leaves(qcore.encode(X, number))[0])


@pytest.mark.parametrize(("rounding", "key"), MODES)
def test_quantizers_push_tangents(rounding, key):
    f = qjax.quantizer("e5m2", forward_rounding=rounding)
    y, tangent = jax.jvp(lambda x: f(x, key), (jnp.asarray(X),), (jnp.asarray(T),))
    assert_same_bits(y, qcore.quantize(X, "e5m2", rounding, key=key))
    assert_same_bits(tangent, T)
    nothing = qjax.quantizer()
    assert_same_bits(jax.jvp(nothing, (jnp.asarray(X),), (jnp.asarray(T),))[1], T)


def test_quantizers_mask_tangents():
    f = qjax.quantizer(FIXED, None, "nearest", clamping_grad_zero=True)
    assert INSIDE.any()
    assert not INSIDE.all()
    expected = np.where(INSIDE, T, np.float32(0))
    for transformed in (lambda g: g, jax.jit):
        push = transformed(lambda x, t: jax.jvp(f, (x,), (t,)))
        y, tangent = push(jnp.asarray(X), jnp.asarray(T))
        assert_same_bits(y, qcore.quantize(X, FIXED))
        assert_same_bits(tangent, expected)
        assert_same_bits(jax.vjp(f, jnp.asarray(X))[1](jnp.asarray(T))[0], expected)
    hessian = jax.hessian(lambda x: (f(x) ** 2).sum())(jnp.asarray(X[0]))
    assert_same_bits(hessian, np.diag(np.where(INSIDE[0], np.float32(2), np.float32(0))))


@pytest.mark.parametrize("options", [{"backward_number": "e5m2"}, {"backward_hooks": [lambda grad: grad]}])
def test_quantizers_that_change_gradients_have_no_tangents(options):
    f = qjax.quantizer("e5m2", forward_rounding="nearest", backward_rounding="nearest", **options)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f, (jnp.asarray(X),), (jnp.asarray(T),))


@pytest.mark.heavy
def test_fake_quantization_has_a_hessian():
    x = jnp.linspace(-20, 20, 12)
    f = lambda x: qjax.quantization.fake_quantize_per_tensor_affine(x, 0.125, 0, -128, 127)  # noqa: E731
    inside = jnp.abs(x) < 15.9
    for second in (jax.hessian, lambda g: jax.jacrev(jax.jacrev(g))):
        assert_same_bits(second(lambda x: (f(x) ** 2).sum())(x), jnp.diag(jnp.where(inside, 2.0, 0.0)))
