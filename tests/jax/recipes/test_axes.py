"""Lowering under vmap, shard_map, named axes and shardings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax_auto_low_support import KEY, NEAREST, ROUNDINGS, STOCHASTIC, F, G, W, X, by_hand, integers, value_and_gradients
from support import assert_same_bits, assert_same_trees, equations

import qjax
from qcore import RECIPES
from qjax._parameters import parameters
from qjax.recipes import lower


@ROUNDINGS
def test_vmap_of_the_lowered_repeats_the_words_and_takes_a_key_an_example(rounding):
    f, q = lower(lambda w, b, x: w @ x + b, forward_number=F, **rounding), by_hand(forward_number=F, **rounding)
    b = integers(4, 3)
    rows = jnp.stack([q(W @ row + b, 0) for row in X])
    assert_same_bits(jax.vmap(lambda x: f(W, b, x, key=KEY))(X), rows)
    keys = jax.random.split(KEY, 3)
    quantizer = qjax.quantizer(forward_number=F, **rounding)
    rows = [quantizer(W @ row + b, jax.random.fold_in(key, 0)) for row, key in zip(X, keys, strict=True)]
    assert_same_bits(jax.vmap(lambda x, key: f(W, b, x, key=key))(X, keys), jnp.stack(rows))


@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param("swalp", marks=pytest.mark.heavy)])
@pytest.mark.filterwarnings("ignore:the recipe lowers")
def test_an_example_is_a_batch_of_one(recipe):
    """Blocks along examples, and one for each, in programs of one example, which vmap calls for a batch."""
    numbers = jnp.asarray(np.random.default_rng(0).standard_normal((3, 64), np.float32))
    one = value_and_gradients(partial(lower(lambda w, x: w @ x, RECIPES[recipe]), key=KEY))
    w, rows = numbers[:2] - 0.1, numbers[:, None]
    batch = value_and_gradients(partial(lower(lambda w, x: x @ w.T, RECIPES[recipe]), key=KEY))
    assert_same_trees(
        jax.jit(jax.vmap(one, (None, 0)))(w, numbers),
        jax.tree.map(np.squeeze, jax.tree.map(np.asarray, jax.jit(jax.vmap(batch, (None, 0)))(w, rows))),
    )


def test_named_axes():
    f = lower(lambda x: jax.lax.psum(x @ W, "i"), forward_number=F, **NEAREST)
    q = by_hand(forward_number=F, **NEAREST)
    expected = jnp.broadcast_to(q(X @ W).sum(0), (3, 4))
    assert_same_bits(jax.vmap(f, axis_name="i")(X), expected)


@pytest.mark.parametrize(
    ("check_vma", "rounding"),
    [
        pytest.param(False, NEAREST, id="nearest", marks=pytest.mark.heavy),
        pytest.param(True, STOCHASTIC, id="stochastic"),
    ],
)
def test_shard_map(check_vma, rounding):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = PartitionSpec("i"), PartitionSpec()

    def body(w, x):
        return jax.lax.psum(x @ w, "i") @ w

    program = jax.shard_map(body, mesh=mesh, in_specs=(everywhere, rows), out_specs=everywhere, check_vma=check_vma)
    arguments = {"forward_number": F, "backward_number": G} | rounding
    lowered, q = partial(lower(program, **arguments), key=KEY), by_hand(**arguments)
    x = integers((6, 4), 2)

    def expected(w, x):
        return q(sum(q(half @ w, 0, 0) for half in (x[:3], x[3:])) @ w, 0, 1)

    expected = jax.jit(value_and_gradients(expected))(W, x)
    assert_same_trees(jax.jit(value_and_gradients(lowered))(W, x), expected)
    if rounding is NEAREST:  # operation by operation: sixty programs
        assert_same_bits(lowered(W, x), expected[0])


def test_shardings_of_an_inner_jit_become_constraints():
    auto = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    columns, rows = (NamedSharding(auto, PartitionSpec(*spec)) for spec in ((None, "i"), ("i", None)))
    inner = jax.jit(jnp.matmul, in_shardings=(None, columns), out_shardings=columns)
    lowered = lower(lambda x, w: inner(x, w), forward_number=F, **NEAREST)
    y = jax.jit(lowered)(X, W)
    assert_same_bits(y, by_hand(forward_number=F, **NEAREST)(X @ W))
    assert y.sharding.is_equivalent_to(columns, 2)
    other = jax.jit(jnp.matmul, in_shardings=(rows, None))
    traced = jax.make_jaxpr(lower(lambda x, w: other(inner(w, w), w), forward_number=F, **NEAREST))(X, W)
    found = [e.params["sharding"] for _, e in equations(traced.jaxpr) if e.primitive.name == "sharding_constraint"]
    assert found == [columns, columns, rows]


def test_options_of_shard_map_stay():
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = PartitionSpec("i")
    program = jax.shard_map(lambda x: x @ W, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"i"})
    options = ("mesh", "out_specs", "check_vma", "shard_axes")

    def options_of(fn):
        traced = jax.make_jaxpr(fn)(integers((4, 4)))
        found = [parameters(e) for _, e in equations(traced.jaxpr) if "mesh" in e.params]
        return [[getattr(one, name) for name in options] for one in found]

    assert options_of(lower(program, forward_number=F, **NEAREST)) == options_of(program) != []
