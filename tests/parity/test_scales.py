"""Scaled numbers on the wire in the three packages: the same bits, eager and compiled, in shard_map and in vmap."""

import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ranks import DTYPES, hard_stack
from support import assert_same_bits

import qcore.distributed
import qjax.distributed
import qtorch.distributed

STOCHASTIC = (
    "collective(wire=e5m2,order=nccl_ring,accumulator=accumulator(chunk=1),"
    "scale=wire_scale(3,inverse=power_of_two),rounding=stochastic)"
)
BLOCKS = "collective(wire=mxfp4,accumulator=accumulator(chunk=1),divide=after,rounding=stochastic)"
CASES = [
    (BLOCKS, "bfloat16", "reduce"),
    # numbers that were scaled back are none of the arrays' format, though the wire's were
    ("collective(wire=bfloat16,order=none,scale=wire_scale(3,largest=1))", "bfloat16", "all_gather"),
    ("torchft.avg", "bfloat16", "reduce"),
    ("zeropp.qgz", "float16", "reduce_scatter"),
    ("zeropp.qwz", "float32", "all_gather"),
    ("torchao.float8_all_gather", "float32", "all_gather"),
    ("deepep.dispatch", "bfloat16", "all_gather"),
    (STOCHASTIC, "float32", "reduce"),
]
CALLS = "reduce", "reduce_scatter", "all_gather"
SCALED = [name for name, backend in qcore.distributed.BACKENDS.items() if backend.law.scale]
OWN = STOCHASTIC, BLOCKS, "collective(wire=nvfp4,order=none)", "collective(wire=nf4,order=none)"
MORE = [(name, dtype, call) for name in [*SCALED, *OWN] for dtype in DTYPES for call in CALLS]


def stack_of(dtype, ranks):
    """Matrices (ranks, 4 * ranks, 4 * ranks) of numbers of all sizes, with infinities, NaN and zeros."""
    size = 4 * ranks
    stack = hard_stack("wide", ranks, size * size, dtype).reshape(ranks, size, size)
    stack[:, 1] = hard_stack("tiny", ranks, size, dtype)
    stack[0, 0, :2], stack[-1, -1, 3], stack[0, -1] = [np.nan, np.inf], -np.inf, 0
    return stack


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name))


def compare(name, dtype, call, ranks):
    stack = stack_of(dtype, ranks)
    expected = getattr(qcore.distributed, call)(stack, name, key=5)
    assert_same_bits(getattr(qtorch.distributed, call)(tensor(stack), name, key=5), expected, "torch")
    assert_same_bits(getattr(qjax.distributed, call)(stack, name, key=5), expected, "jax")


@pytest.mark.parametrize(("name", "dtype", "call"), CASES)
def test_the_same_bits(name, dtype, call):
    compare(name, dtype, call, 3)


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
@pytest.mark.parametrize(("name", "dtype", "call"), MORE)
def test_the_same_bits_of_all(name, dtype, call, ranks):
    law = qcore.distributed.named(name) if name in SCALED else qcore.parse(name)
    if law.order == "none" and call != "all_gather":
        with pytest.raises(ValueError, match="allowed is it in all_gather"):
            getattr(qcore.distributed, call)(stack_of(dtype, ranks), name)
        return
    compare(name, dtype, call, ranks)


def test_compiled_programs():
    stack = stack_of("float32", 2)
    expected = qcore.distributed.reduce(stack, "torchft.avg")
    program = torch.compile(
        lambda x: qtorch.distributed.reduce(x * 1.0, "torchft.avg") * 1.0, fullgraph=True, backend="aot_eager"
    )
    assert_same_bits(program(tensor(stack)), expected, "torch.compile")

    def psum(x):
        return qjax.distributed.psum(x, "ranks", "torchft.avg")

    mesh = Mesh(np.array(jax.devices()[:2]), ("ranks",))
    on_mesh = jax.shard_map(lambda x: psum(x[0]), mesh=mesh, in_specs=P("ranks"), out_specs=P())
    assert_same_bits(jax.jit(on_mesh)(stack), expected, "shard_map")
    assert_same_bits(jax.jit(jax.vmap(psum, axis_name="ranks"))(stack)[1], expected, "vmap")
