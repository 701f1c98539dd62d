"""Lowered programs with derivatives: functions with their own, and derivatives inside and of what is lowered."""

import jax
import jax.numpy as jnp
import pytest
from covering import some
from jax.custom_derivatives import SymbolicZero
from jax_auto_low_support import KEY, NEAREST, ROUNDINGS, F, G, W, X, by_hand, check, layer
from support import assert_same_bits

from qjax.recipes import lower


def own_jvp(symbolic_zeros):
    def program(q):
        @jax.custom_jvp
        def f(w, x, fixed):
            return layer(q, w, jax.nn.relu(layer(q, w, x, 1, 0)), 1, 1) + fixed

        def rule(primals, tangents):
            (w, x, fixed), (dw, dx, dfixed) = primals, tangents
            assert isinstance(dfixed, SymbolicZero) == symbolic_zeros
            return f(w, x, fixed), 100 * (x @ dw) + 10 * dx @ jnp.ones((4, 4))

        f.defjvp(rule, symbolic_zeros=symbolic_zeros)
        return lambda w, x: layer(q, w, f(w, layer(q, w, x, 0), 1.0), 2)

    return program


def own_vjp(symbolic_zeros):
    def program(q):
        def inside(w, x):
            h = layer(q, w, x, 1, 0)
            return layer(q, w, jax.nn.relu(h), 1, 1), h

        @jax.custom_vjp
        def f(w, x, fixed):
            return inside(w, x)[0], x + fixed, jnp.arange(2)

        def forward(w, x, fixed):
            if symbolic_zeros:
                assert (w.perturbed, x.perturbed, fixed.perturbed) == (True, True, False)
                w, x, fixed = w.value, x.value, fixed.value
            y, h = inside(w, x)
            return (y, x + fixed, jnp.arange(2)), (fixed, w, h)

        def backward(saved, grads):
            (fixed, w, h), (g, unused, integers) = saved, grads
            assert isinstance(unused, SymbolicZero) == symbolic_zeros
            assert integers.dtype == jax.dtypes.float0
            return h.T @ g, 100 * g @ w + fixed, None

        f.defvjp(forward, backward, symbolic_zeros=symbolic_zeros)
        return lambda w, x: layer(q, w, f(w, layer(q, w, x, 0), 1.0)[0], 2)

    return program


@ROUNDINGS
@some((0, 1), (1, 0), own=[own_jvp, own_vjp], symbolic_zeros=[False, True])
def test_own_derivatives_stay_and_values_are_rounded(own, symbolic_zeros, rounding):
    check(own(symbolic_zeros), W, X, rounding=rounding)


def scanned(q, own):
    f = jax.checkpoint(jax.jit(own(False)(q)))
    return lambda w, x: jax.lax.scan(lambda x, _: (jnp.sign(f(w, x)), f(w, x)), x, length=2)


def vmapped(q, own):
    return lambda w, x: jax.vmap(own(False)(q), (None, 0))(w, x[:, None])


@some((0, 1), (1, 0), own=[own_jvp, own_vjp], construct=[scanned, vmapped])
def test_own_derivatives_inside_other_constructs(own, construct):
    check(lambda q: construct(q, own), W, X)


def test_own_derivatives_of_a_function_without_layers():
    @jax.custom_vjp
    def f(x, n):
        return x * n

    f.defvjp(lambda x, n: (x * n, n), lambda n, g: (7 * n * g, None))
    check(lambda q: lambda w, x: f(layer(q, w, x, 0), 3), W, X)


def test_no_gradient_is_dropped_in_silence():
    """JAX refuses gradients of what a custom_vjp function captured; so does the lowered one."""

    def fn(w, x):
        @jax.custom_vjp
        def f(x):
            return x @ w

        f.defvjp(lambda x: (x @ w, None), lambda _, g: (g,))
        return f(x)

    lowered = lower(fn, forward_number=F, **NEAREST)
    assert_same_bits(lowered(W, X), by_hand(forward_number=F, **NEAREST)(X @ W))
    with pytest.raises(Exception, match="closed-over value"):
        jax.grad(lambda w: jax.jit(fn)(w, X).sum())(W)
    with pytest.raises(Exception, match="closed-over value"):
        jax.grad(lambda w: lowered(w, X).sum())(W)


def test_derivatives_inside_fn_are_programs_whose_products_are_layers():
    """lower(grad(f)) against what differentiation makes of f, written out; grad(lower(f)) is something else."""

    def loss(w, x):
        return (jnp.square(x @ w)).sum() / 2

    q = by_hand(forward_number=F, **NEAREST)
    lowered = lower(jax.grad(loss), forward_number=F, **NEAREST)(W, X)
    assert_same_bits(lowered, q(X.T @ q(X @ W)))
    other = jax.grad(lower(loss, forward_number=F, **NEAREST))(W, X)
    assert_same_bits(other, X.T @ q(X @ W))
    assert (lowered != other).any()


@ROUNDINGS
def test_gradients_of_gradients(rounding):
    """In reverse mode, of a function with a quantizer's gradient in its own program."""
    arguments = {"forward_number": F, "backward_number": G} | rounding
    f, q = lower(jnp.matmul, **arguments), by_hand(**arguments)

    def second(f):
        return jax.grad(lambda x: (jax.grad(lambda x: (f(x) ** 2).sum())(x) ** 2).sum())(X)

    assert_same_bits(second(lambda x: f(x, W, key=KEY)), second(lambda x: q(x @ W, 0)))
