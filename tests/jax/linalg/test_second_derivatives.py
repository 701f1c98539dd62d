"""Derivatives of derivatives of JAX's products: float64's with wide formats, products by hand with narrow ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from support import assert_same_bits

from qcore import Accumulator, Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry
from qjax import linalg

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def attention(x, w, b):
    return linalg.scaled_dot_product_attention(linalg.linear(x, w, b), x, x)


def wide_attention(x, w, b):
    return jax.nn.softmax((x @ w.T + b) @ x.mT / 2, -1) @ x


def wide_conv(x, w, b):
    pad = ((1, 1), (1, 1))
    return jax.lax.conv_general_dilated(x, w, (2, 2), pad, feature_group_count=2) + b[:, None, None]


CASES = {
    "attention": (attention, wide_attention, [(2, 3, 4), (4, 4), (4,)]),
    "conv": (lambda *x: linalg.conv2d(*x, 2, 1, 1, 2), wide_conv, [(1, 4, 4, 3), (2, 2, 3, 3), (2,)]),
}


def three_orders(f, arrays):
    """The gradients of sum(sin(f)), of the sum of their squares, and of the sum of these ones' squares."""
    found, value, every = [], lambda *xs: jnp.sin(f(*xs)).sum(), tuple(range(len(arrays)))
    for _ in range(3):
        gradients = jax.grad(value, every)
        found.append(gradients)
        value = lambda *xs, gradients=gradients: sum((one**2).sum() for one in gradients(*xs))  # noqa: E731
    return jax.jit(lambda *xs: [one(*xs) for one in found])(*arrays)


def wide(f, *arrays):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, f(*(jnp.asarray(x, jnp.float64) for x in arrays)))


def assert_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(one - other).max() <= 3e-6 * np.abs(other).max()


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_wide_formats_have_the_derivatives_of_float64(case):
    f, reference, shapes = CASES[case]
    arrays = [random(*shape) for shape in shapes]
    assert_close(three_orders(f, arrays), wide(lambda *xs: three_orders(reference, xs), *arrays))


WAYS = {
    "forward over reverse": jax.hessian,
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),  # as in the test above
}


@pytest.mark.parametrize("way", usually(["forward over reverse"], WAYS))
def test_hessians_and_tangents(way):
    x, w, b = random(2, 3), random(3, 3), random(3)
    f = lambda x: jnp.sin(linalg.linear(x, w, b) + linalg.linear(x, 2 * x.mT @ x, x[0])).sum()  # noqa: E731
    g = lambda x: jnp.sin(x @ w.T + b + 2 * x @ (x.mT @ x).mT + x[0]).sum()  # noqa: E731
    hessian = wide(jax.jit(jax.hessian(g)), x)
    assert_close(jax.jit(WAYS[way](f))(x), hessian)
    if way == "forward over forward":
        tangent = wide(jax.jit(lambda x: jax.jvp(g, (x,), (x,))[1]), x)
        found = jax.jit(lambda x: [jax.jvp(f, (x,), (x,))[1], jax.linearize(f, x)[1](x)])(x)
        assert_close(found, [tangent, tangent])


SUMS = Accumulator("float(6,9)", chunk=4)
LOW = {
    "operands": ("e4m3fn", "e4m3fn"),
    "accumulator": SUMS,
    "grad_a": Product("e5m2", "e4m3fn", SUMS),
    "grad_b": Product("e5m2", "e3m2fn", SUMS),
}


@pytest.mark.parametrize("mapped", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_second_products_have_formats_and_accumulators_of_their_role(mapped):
    """As in tests/torch/linalg/test_second_derivatives.py: the bits are the same in both packages."""
    a, b, g, of_a, of_b = (random(*shape) for shape in ((3, 16), (16, 5), (3, 5), (3, 16), (16, 5)))
    products = {FORWARD: Product(*LOW["operands"], SUMS), GRAD_A: LOW["grad_a"], GRAD_B: LOW["grad_b"]}

    def by_hand(which, first, second, shape):
        other = b.shape if which == FORWARD else shape
        return multiply_arrays(MatrixGeometry(), which, products[which], first, second, other, None).reshape(shape)

    def second(a, b, g, of_a, of_b):
        gradients = lambda a, b, g: jax.vjp(lambda a, b: linalg.matmul(a, b, **LOW), a, b)[1](g)  # noqa: E731
        return jax.vjp(gradients, a, b, g)[1]((of_a, of_b))

    expected = (
        by_hand(GRAD_A, g, of_b, a.shape),
        by_hand(GRAD_B, g, of_a, b.shape),
        by_hand(FORWARD, of_a, b, g.shape) + by_hand(FORWARD, a, of_b, g.shape),
    )
    if mapped:
        found = [x[0] for x in jax.jit(jax.vmap(second))(*(jnp.stack([x, 2 * x]) for x in (a, b, g, of_a, of_b)))]
    else:
        found = jax.jit(second)(a, b, g, of_a, of_b)
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.heavy
def test_batches_of_keys_of_weights_and_of_neither():
    """The gradient of what vmap shares is the sum of the examples' gradients."""
    keys, a, b = jax.random.split(jax.random.key(0), 3), random(3, 2, 5), random(5, 2)
    call = lambda a, b, key: linalg.matmul(a, b, operands=(None, "operand(e4m3fn,rounding=stochastic)"), key=key)  # noqa: E731
    one = jax.jit(call)
    each = [one(a[i], b, keys[i]) for i in range(3)]
    assert_same_bits(jax.jit(jax.vmap(call, (0, None, 0)))(a, b, keys), jnp.stack(each))
    nested = jax.jit(jax.vmap(jax.vmap(call, (None, None, 0)), (0, None, None), out_axes=1))(a, b, keys)
    assert_same_bits(jnp.stack([nested[i, i] for i in range(3)]), jnp.stack(each))
    shared = jax.jit(jax.grad(lambda b: jax.vmap(call, (0, None, 0))(a, b, keys).sum()))(b)
    of_one = jax.jit(jax.grad(lambda b, a, key: call(a, b, key).sum()))
    assert_same_bits(shared, jnp.stack([of_one(b, a[i], keys[i]) for i in range(3)]).sum(0))


@pytest.mark.heavy
def test_scan_checkpoint_and_export():
    a, b = random(3, 2, 5), random(5, 4)

    def loss(b):
        step = jax.checkpoint(lambda carry, a: (carry + jnp.sin(linalg.matmul(a, b)).sum(), None))
        return jax.lax.scan(step, 0.0, a)[0]

    second = jax.grad(lambda b: (jax.grad(loss)(b) ** 2).sum())
    reference = lambda b: jnp.sin(a @ b).sum()  # noqa: E731
    expected = wide(jax.jit(jax.grad(lambda b: (jax.grad(reference)(b) ** 2).sum())), b)
    assert_close(jax.jit(second)(b), expected)
    assert_close(jax.export.export(jax.jit(second))(b).call(b), expected)


@pytest.mark.heavy
def test_shards_share_a_weight():
    """The gradient of what devices share is the sum of theirs; before, JAX refused it."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec, a, w, bias = jax.sharding.PartitionSpec, random(8, 4), random(2, 4), random(2)

    def loss(w, bias):
        part = lambda a, w, bias: jax.lax.psum(linalg.linear(a, w, bias).sum(), "x")  # noqa: E731
        return jax.shard_map(part, mesh=mesh, in_specs=(spec("x"), spec(), spec()), out_specs=spec())(a, w, bias)

    assert_close(jax.grad(loss, (0, 1))(w, bias), (np.stack([a.sum(0)] * 2), np.float32([8, 8])))


@pytest.mark.heavy
def test_delayed_scales_have_first_derivatives():
    kept = "operand(binary(4,3,specials=fn,overflow=saturate),scale=scale(history=2))"
    options = {"operands": (kept, kept), "grad_b": f"product(None,{kept})", "scaling": linalg.first_scaling(2)}
    f = lambda x: jnp.sin(linalg.matmul(x, x.mT, **options)).sum()  # noqa: E731
    x = random(2, 3)
    assert jax.grad(f)(x).shape == x.shape
    with pytest.raises(NotImplementedError, match="delayed scales have no second derivatives"):
        jax.grad(lambda x: jax.grad(f)(x).sum())(x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f, (x,), (x,))
