"""States in codes of arrays that lie on several devices: blocks of the whole array, or in `shard_map` of the shard."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import assert_same_bits

from qjax.optim import adamw_4bit, adamw_8bit, flash_adamw

RNG = np.random.default_rng(5)
PARAMS, *SLOPES = ({n: RNG.standard_normal(s).astype(np.float32) for n, s in
                    {"rows": (64, 128), "columns": (32, 256), "bias": (70,)}.items()} for _ in range(3))  # fmt: skip
SPECS = {"rows": PartitionSpec("x"), "columns": PartitionSpec(None, "x"), "bias": PartitionSpec()}


def mesh():
    return jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


def stepped(optimizer, params, slopes):
    state, step = optimizer.init(params), jax.jit(optimizer.step)
    for slope in slopes:
        params, state = step(params, slope, state)
    return params, state


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [adamw_8bit, adamw_4bit, flash_adamw])
def test_a_jitted_step_has_blocks_of_the_whole_array(kind):
    """The bits of one device. A shard of `columns` has 32 numbers of each block, one of `rows` has whole blocks."""
    lay = partial(jax.tree.map, lambda x, spec: jax.device_put(x, NamedSharding(mesh(), spec)))
    sharded, slopes = lay(PARAMS, SPECS), [lay(slope, SPECS) for slope in SLOPES]
    expected, found = stepped(kind(), PARAMS, SLOPES), stepped(kind(), sharded, slopes)
    assert len(found[0]["columns"].sharding.device_set) == 8
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert_same_bits(np.asarray(b), np.asarray(a))


@pytest.mark.heavy
def test_a_step_in_shard_map_has_blocks_of_the_shard():
    """A block of `columns` then has numbers of eight rows, 32 of each."""
    optimizer, x, slope = adamw_8bit(), jnp.asarray(RNG.standard_normal((512, 256)), jnp.float32), SLOPES[0]["rows"]
    slope = jnp.tile(slope, (8, 2)) * x
    spec = SPECS["columns"]

    def step(p, slope):
        p, state = optimizer.step(p, slope, optimizer.init(p))
        return p, state.first.codes, state.first.scale

    specs = spec, spec, PartitionSpec("x")
    mapped = jax.shard_map(step, mesh=mesh(), in_specs=(spec, spec), out_specs=specs, check_vma=False)
    found, each = jax.jit(mapped)(x, slope), jax.jit(step)
    parts = [each(a, b) for a, b in zip(jnp.split(x, 8, 1), jnp.split(slope, 8, 1), strict=True)]
    for place, axis in enumerate((1, 1, 0)):
        assert_same_bits(np.asarray(found[place]), np.concatenate([part[place] for part in parts], axis))
