"""Sums of the real XLA over simulated devices, beside the law that is said to be its."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ranks import DTYPES, KINDS, hard_stack, one_nan
from support import assert_same_bits

import qjax.distributed
from qcore import distributed
from qjax._rounding.keys import fold_in, key_words


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", usually([8], [1, 2, 4, 8]))
def test_psum(ranks, dtype):
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("ranks",))

    def run(function, specs):
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("ranks"), out_specs=specs))

    psum = run(lambda x: jax.lax.psum(x[0], "ranks"), P())
    scatter = run(lambda x: jax.lax.psum_scatter(x[0], "ranks", tiled=True), P("ranks"))
    for kind in KINDS:
        stack = hard_stack(kind, ranks, 97 * ranks, dtype)
        assert_same_bits(one_nan(psum(stack)), one_nan(distributed.reduce(stack, "xla.cpu")), f"psum {kind}")
        parts = distributed.reduce_scatter(stack, "xla.cpu").reshape(-1)
        assert_same_bits(one_nan(scatter(stack)), one_nan(parts), f"psum_scatter {kind}")


STOCHASTIC = "collective(wire=bfloat16,order=nccl_ring,rounding=stochastic)"


@pytest.mark.parametrize("name", ["nccl.tree.bf16", "gloo.avg", STOCHASTIC])
def test_psum_of_a_collective(name):
    """In shard_map and in vmap, where XLA's own sums differ."""
    stack = hard_stack("wide", 4, 21, "float32")
    expected = distributed.reduce(stack, name, key=7)
    mesh = Mesh(np.array(jax.devices()[:4]), ("ranks",))

    def psum(x):
        return qjax.distributed.psum(x, "ranks", name, key=7)

    on_mesh = jax.jit(jax.shard_map(lambda x: psum(x[0]), mesh=mesh, in_specs=P("ranks"), out_specs=P()))
    assert_same_bits(on_mesh(stack), expected, "shard_map")
    for row in jax.jit(jax.vmap(psum, axis_name="ranks"))(stack):
        assert_same_bits(row, expected, "vmap")


def test_psum_over_two_axes():
    stack = hard_stack("wide", 4, 21, "bfloat16")
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("nodes", "ranks"))
    axes = ("nodes", "ranks")
    function = jax.shard_map(
        lambda x: qjax.distributed.psum(x[0], axes, "nccl.ring.bf16"), mesh=mesh, in_specs=P(axes), out_specs=P()
    )
    assert_same_bits(jax.jit(function)(stack), distributed.reduce(stack, "nccl.ring.bf16"))


@pytest.mark.parametrize("name", [STOCHASTIC, pytest.param("nccl.ring.bf16.avg", marks=pytest.mark.heavy)])
def test_updates(name):
    """An optax transformation on stacks, in vmap and in shard_map: two steps of one message."""
    parts = [hard_stack(kind, 4, 15, "float32") for kind in ("wide", "ties")]
    stacks = [{"a": part[:, :6].reshape(4, 2, 3), "b": part[:, 6:]} for part in parts]
    messages = [np.concatenate([stack["a"].reshape(4, 6), stack["b"]], 1) for stack in stacks]
    keys = [np.asarray(fold_in(key_words(7), n)) for n in (0, 1)]
    expected = [distributed.reduce(x, name, key=tuple(map(int, key))) for x, key in zip(messages, keys, strict=True)]

    def steps(axis, *stacks):
        change = qjax.distributed.reduce_updates(name, axis, key=7)
        state = change.init(None)
        found = []
        for stack in stacks:
            updates, state = change.update(stack, state)
            found.append(jnp.concatenate([updates["a"].reshape(-1), updates["b"]]))
        return jnp.stack(found)

    mesh = Mesh(np.array(jax.devices()[:4]), ("ranks",))
    on_mesh = jax.shard_map(
        lambda *x: steps("ranks", *jax.tree.map(lambda leaf: leaf[0], x)), mesh=mesh, in_specs=P("ranks"), out_specs=P()
    )
    in_vmap = jax.vmap(partial(steps, "ranks"), axis_name="ranks")
    for way, found in {
        "stack": jax.jit(partial(steps, None))(*stacks),
        "shard_map": jax.jit(on_mesh)(*stacks),
        "vmap": jax.jit(in_vmap)(*stacks)[3],
    }.items():
        assert_same_bits(found, np.stack(expected), way)


def test_wrong_updates():
    update = qjax.distributed.reduce_updates("gloo").update
    state = qjax.distributed.reduce_updates("gloo").init(None)
    assert update({}, state)[0] == {}
    x = np.ones((2, 3), np.float32)
    for updates, message in [
        ([x, x.astype(np.float16)], "updates have dtypes float16, float32; allowed is one"),
        ([x, x[:1]], r"updates have shapes \(2, 3\), \(1, 3\); allowed is \(ranks, \.\.\.\)"),
        ([x[0, 0]], r"updates have shapes \(\); allowed is"),
        ([x.astype(int)], "updates has dtype int64|stack has dtype int32"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            update(updates, state)
    with pytest.raises(ValueError, match="key=None; rounding='stochastic' needs a key"):
        qjax.distributed.reduce_updates(STOCHASTIC)
