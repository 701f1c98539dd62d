"""Sums of the real XLA over simulated devices, beside the law that is said to be its."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ranks import DTYPES, KINDS, hard_stack, one_nan
from support import assert_same_bits

import qjax.distributed
from qcore import distributed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.heavy), 8])
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
