"""The watch over JAX functions, through transformations and control flow; sharded arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually

import qcore.insight
from qcore.insight.law import LENGTH, SUMS
from qjax import quantize, quantizer
from qjax.insight import Site, statistics_of, watch
from qjax.insight.watching import over_axes

X = np.random.default_rng(1).normal(size=(8, 32)).astype(np.float32) * 200
SITE = Site("a", "output")


def rounded(x, number="e4m3fn"):
    with jax.named_scope("a"):
        return quantize(x, number)


def expected(*arrays, number="e4m3fn"):
    first, *rest = (qcore.insight.statistics_of(np.asarray(x), number) for x in arrays)
    return first.merge(*rest)


def test_control_flow():
    def fn(x):
        x, _ = jax.lax.scan(lambda x, _: (rounded(x) * 0.5, None), x, None, length=3)
        x = jax.lax.cond(x[0, 0] < 1e9, lambda x: quantizer("e5m2", None, "nearest")(x), lambda x: x, x)
        with jax.named_scope("loop"):
            state = jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, rounded(s[1] * 3)), (0, x))
        with jax.named_scope("again"):
            return jax.checkpoint(rounded)(state[1])

    y, found = jax.jit(watch(fn))(X)
    assert np.array_equal(np.asarray(y).view("i4"), np.asarray(jax.jit(fn)(X)).view("i4"))
    steps = [X]
    for _ in range(2):
        steps.append(np.asarray(quantize(steps[-1], "e4m3fn")) * np.float32(0.5))
    assert found[SITE].parts() == [expected(x) for x in steps]
    last = np.asarray(quantize(steps[-1], "e4m3fn")) * np.float32(0.5)
    assert found[Site("", "output")] == expected(last, number="e5m2")
    loop = [np.asarray(quantize(last, "e5m2")) * np.float32(3)]
    loop.append(np.asarray(quantize(loop[0], "e4m3fn")) * np.float32(3))
    assert found[Site("loop.a", "output")] == expected(*loop)
    assert found[Site("again.a", "output")] == expected(quantize(loop[1], "e4m3fn"))


@pytest.mark.heavy
def test_off_it_costs_nothing():
    """The program of a function that is watched elsewhere is as before."""
    both = quantizer("e4m3fn", "e5m2", "nearest", "nearest")
    plain = jax.jit(jax.grad(lambda x: both(x).sum()))
    before = plain.lower(X).as_text()
    assert len(jax.jit(watch(plain)).lower(X).as_text()) > len(before)
    jax.clear_caches()
    assert plain.lower(X).as_text() == before


def test_gradients():
    both = quantizer("e4m3fn", "e5m2", "nearest", "nearest")

    def loss(x):
        with jax.named_scope("a"):
            return (both(x) * X).sum()

    _, found = jax.jit(watch(jax.grad(loss)))(X)
    assert set(found) == {SITE, Site("a", "gradient")}
    assert found[Site("a", "gradient")] == expected(X, number="e5m2")
    grad, found = jax.jit(jax.grad(watch(loss), has_aux=True))(X)
    assert np.array_equal(grad, quantize(X, "e5m2"), equal_nan=True)
    assert found == {SITE: expected(X)}


@pytest.mark.parametrize("number", usually(["e4m3fn"], ["e4m3fn", "scaled(e2m1fn,{-1:32})"]))
def test_vmap_and_shards(number):
    _, found = jax.jit(watch(jax.vmap(lambda x: rounded(x, number))))(X)
    assert found == {SITE: expected(X, number=number)}
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(X, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    assert jax.jit(lambda x: statistics_of(x, number))(x) == expected(X, number=number)


@pytest.mark.parametrize(
    ("kind", "cases"),
    [
        ("Auto", [(("x",), True, 1)]),
        pytest.param("Auto", [(("x",), True, 1), (("x",), False, 2)], marks=pytest.mark.heavy),
        pytest.param("Explicit", [(("x", "y"), True, 1)], marks=pytest.mark.heavy),
        pytest.param("Auto", [((), True, 1), (("x", "y"), False, 1)], marks=pytest.mark.heavy),
        pytest.param("Explicit", [((), False, 8), (("x",), True, 1)], marks=pytest.mark.heavy),
    ],
)
def test_shard_map(kind, cases):
    """Shards are merged; of copies one counts, unless nothing says that they are copies."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType[kind],) * 2)
    whole = expected(X)
    for axes, checked, copies in cases:
        spec = jax.sharding.PartitionSpec(*axes)
        x = jax.device_put(X, jax.sharding.NamedSharding(mesh, spec))
        part = jax.shard_map(rounded, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=checked)
        y, found = jax.jit(watch(part))(x)
        assert found == {SITE: whole.merge(*[whole] * (copies - 1))}, (axes, checked)
        assert np.array_equal(np.asarray(y).view("i4"), np.asarray(quantize(X, "e4m3fn")).view("i4"))


def test_sums_over_devices():
    """Digits of 30 bits carry."""
    one = qcore.insight.Statistics("e5m2", np.full(LENGTH, (1 << 30) - 1, np.int32))
    one.lanes[:SUMS] = -3  # signed sums have negative higher parts
    lanes = jax.pmap(lambda lanes: over_axes(lanes, ("x",)), "x")(np.stack([one.lanes] * 8))
    assert qcore.insight.Statistics("e5m2", lanes[0]) == one.merge(*[one] * 7)


def test_bad_functions():
    with pytest.raises(TypeError, match="fn=3 is a int; allowed is a function"):
        watch(3)
    with pytest.raises(ValueError, match="fn rounds nothing that is watched"):
        watch(jnp.sin)(X)
    with pytest.raises(ValueError, match=r"block\(8.*under vmap; allowed are blocks along the last axes"):
        watch(jax.vmap(lambda x: rounded(x, "block(8)")))(X)

    def mixed(x):
        return rounded(rounded(x), "e5m2")

    with pytest.raises(ValueError, match="fn rounds to e4m3fn and e5m2 at one site"):
        watch(mixed)(X)
