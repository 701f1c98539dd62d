"""Sums of the real XLA over simulated devices, beside the law that is said to be its."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ranks import DTYPES, KINDS, hard_stack, one_nan
from support import assert_same_bits

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
